package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// recorder answers each request with a text, and keeps the requests.
type recorder struct {
	mu     sync.Mutex
	status int
	text   string
	seen   []*http.Request
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, request)
	w.Header().Set("Retry-After", "0")
	w.WriteHeader(max(r.status, http.StatusOK))
	_, _ = fmt.Fprint(w, r.text)
}

func record(t *testing.T, status int, text string) (*recorder, string) {
	t.Helper()
	r := &recorder{status: status, text: text}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, server.URL
}

// Each call that needs a key has one of its own. A change without a key gets none from the context, and is
// not sent again.
func TestKeysOfRequests(t *testing.T) {
	t.Parallel()
	const key = "Idempotency-Key"
	requests, url := record(t, http.StatusOK, "{}")
	c := dial(t, url, client.WithUserAgent("fleet-report/1.2"))
	for range 2 {
		_, err := c.RegisterNode(t.Context(), registration("gpu-1"))
		require.NoError(t, err)
	}
	first, second := requests.seen[0].Header, requests.seen[1].Header
	require.NotEmpty(t, first.Get(key))
	require.NotEqual(t, first.Get(key), second.Get(key))
	require.Equal(t, "fleet-report/1.2", first.Get("User-Agent"))
	require.Contains(t, first.Get("Authorization"), "Bearer ")

	requests, url = record(t, http.StatusServiceUnavailable, "")
	ctx := client.WithIdempotencyKey(t.Context(), "import-1")
	_, err := dial(t, url).SetNode(ctx, "gpu-1", wire.NodeChange{Reason: "CHG-1"})
	require.Error(t, err)
	require.Len(t, requests.seen, 1)
	require.Empty(t, requests.seen[0].Header.Get(key))
}

// Each status that no longer changes without a decision ends the wait.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	for _, s := range []lifecycle.OperationState{lifecycle.OperationParked, lifecycle.OperationAbandoned, lifecycle.OperationCompleted} {
		_, url := record(t, http.StatusOK, fmt.Sprintf(`{"operation":{"status":%q}}`, s))
		v, err := dial(t, url).WaitOperation(t.Context(), schema.NewID())
		require.NoError(t, err)
		require.Equal(t, s, v.Operation.Status)
	}
}

// A wait that the context ends returns the last status, and the error of the context.
func TestWaitIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			_, _ = fmt.Fprint(w, `{"operation":{"status":"running"}}`)
			return
		}
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	v, err := dial(t, server.URL).WaitOperation(ctx, schema.NewID())
	require.ErrorIs(t, err, context.Canceled)
	_, isResponse := errors.AsType[*client.Error](err)
	require.False(t, isResponse, "the server is not at fault")
	require.Equal(t, lifecycle.OperationRunning, v.Operation.Status)
}

// A server that repeats a page does not keep a loop from ending.
func TestRepeatedPage(t *testing.T) {
	t.Parallel()
	requests, url := record(t, http.StatusOK, `{"nodes":[{"host":"gpu-1"}],"next_page_token":"x"}`)
	var failed error
	for _, failed = range dial(t, url).Nodes(t.Context(), client.NodeFilter{}) {
	}
	require.ErrorIs(t, failed, &schema.Error{Kind: schema.KindInternal})
	require.Len(t, requests.seen, 2)
}

// Options that cannot work are errors of New.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.Option{"no source": client.WithTokenSource(nil), "retries": client.WithRetries(-1),
		"no file": client.WithCAFile(t.TempDir() + "/ca.pem")} {
		_, err := client.New("https://gpuaas.example.com", o)
		require.Error(t, err, name)
	}
}
