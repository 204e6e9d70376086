package client_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/apitest"
)

func dial(t *testing.T, url string, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(url, append([]client.Option{client.WithToken(apitest.Token)}, options...)...)
	require.NoError(t, err)
	return c
}

func registration(host string) wire.RegisterNodeRequest {
	return wire.RegisterNodeRequest{Host: host, SKU: "cpu-dev", RegionCode: "region-1", Labels: map[string]string{"rack": "r7"}}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), dial(t, apitest.New(t, nil).URL)
	for _, host := range []string{"gpu-1", "gpu-2", "gpu-3"} {
		_, err := c.RegisterNode(ctx, registration(host))
		require.NoError(t, err)
	}
	changed, err := c.SetNode(ctx, "gpu-2", wire.NodeChange{Labels: map[string]string{"rack": "r8"}})
	require.NoError(t, err)
	assert.Equal(t, "r8", changed.Labels["rack"])

	var hosts []string
	for n, err := range c.Nodes(ctx, client.NodeFilter{Limit: new(1), Selector: new("rack=r7")}) {
		require.NoError(t, err)
		hosts = append(hosts, n.Host)
	}
	assert.Equal(t, []string{"gpu-1", "gpu-3"}, hosts, "from two pages")
	for n, err := range c.Nodes(ctx, client.NodeFilter{Limit: new(1)}) {
		require.NoError(t, err)
		assert.Equal(t, "gpu-1", n.Host)
		break
	}
	for _, err := range c.Nodes(ctx, client.NodeFilter{Selector: new("rack in")}) {
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest})
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	server := apitest.New(t, nil)
	ctx, c := t.Context(), dial(t, server.URL)
	node, err := c.RegisterNode(ctx, registration("gpu-1"))
	require.NoError(t, err)
	started, err := c.Start(ctx, "gpu-1", lifecycle.ActionRemove, wire.LifecycleRequest{Reason: "CHG-204"})
	require.NoError(t, err)
	id := started.Operation.OperationID

	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = c.WaitOperation(short, id)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	parkedAt := server.Park(node.ID)
	parked, err := c.WaitOperation(ctx, id)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationParked, parked.Operation.Status)
	_, err = c.Decide(ctx, id, lifecycle.DecisionRetry, wire.ResolveOperation{Reason: "it is back", StuckSince: &parkedAt})
	require.NoError(t, err)

	server.Finish(node.ID, lifecycle.OperationCompleted, lifecycle.NodeRemoved)
	ended, err := c.WaitOperation(ctx, id)
	require.NoError(t, err)
	assert.Equal(t, lifecycle.OperationCompleted, ended.Operation.Status)
	_, err = c.Decide(ctx, id, lifecycle.DecisionRetry, wire.ResolveOperation{Reason: "again"})
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindDecisionOutdated})
	for op, err := range c.Operations(ctx, client.OperationFilter{}) {
		require.NoError(t, err)
		assert.Equal(t, id, op.OperationID)
	}
}

func TestSKUsAndVersion(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), dial(t, apitest.New(t, nil).URL)
	sku := inventory.NewSKU{Name: "b300", MaxGPUs: 8, MinCPUs: 64, Reason: "CHG-1"}
	_, err := c.AddSKU(ctx, sku)
	require.NoError(t, err)
	_, err = c.AddSKU(ctx, sku)
	require.NoError(t, err, "the same SKU again")
	off, err := c.DeactivateSKU(ctx, "b300", inventory.SKUDeactivation{Reason: "CHG-2"})
	require.NoError(t, err)
	assert.False(t, off.Active)
	got, err := c.SKU(ctx, "b300")
	require.NoError(t, err)
	assert.Equal(t, 8, got.MaxGPUs)
	v, err := c.ServerVersion(ctx)
	require.NoError(t, err)
	assert.Equal(t, version.Read(), v)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	server := apitest.New(t, nil)
	_, err := dial(t, server.URL).Node(t.Context(), "gpu-99")
	e, ok := errors.AsType[*client.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, schema.KindNotFound, e.Code)
	assert.Equal(t, http.StatusNotFound, e.Status)
	assert.NotEmpty(t, e.Next)
	assert.True(t, schema.IsID(e.CorrelationID), e.CorrelationID)
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindNotFound})
	assert.Equal(t, schema.KindNotFound, schema.KindOf(err))

	_, err = dial(t, server.URL, client.WithToken("wrong-token-0123456789")).Node(t.Context(), "gpu-99")
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindUnauthenticated})
	assert.NotContains(t, err.Error(), "wrong-token")

	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	_, err = dial(t, gone.URL, client.WithRetries(0)).Node(t.Context(), "gpu-1")
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: client.ReasonUnreachable})
}

func TestTokenFileIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("old-token-0123456789\n"), 0o600))
	c := dial(t, apitest.New(t, nil).URL, client.WithTokenFile(file))
	_, err := c.ServerVersion(t.Context())
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindUnauthenticated})
	require.NoError(t, os.WriteFile(file, []byte(apitest.Token+"\n"), 0o600))
	_, err = c.ServerVersion(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	_, err = c.ServerVersion(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// flaky rejects the first requests with a status, and counts all.
type flaky struct {
	status, failures int32
	// after passes each request on to the API before it fails: the response is lost.
	after bool
	// pause is the Retry-After of the failures; 0 if it is empty.
	pause string
	seen  atomic.Int32
}

func (f *flaky) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.seen.Add(1) > f.failures {
			next.ServeHTTP(w, r)
			return
		}
		if f.after {
			next.ServeHTTP(httptest.NewRecorder(), r)
		}
		w.Header().Set("Retry-After", cmp.Or(f.pause, "0"))
		w.WriteHeader(int(f.status))
	})
}

func TestRetries(t *testing.T) {
	t.Parallel()
	register := func(c *client.Client) error {
		_, err := c.RegisterNode(t.Context(), registration("gpu-1"))
		return err
	}
	set := func(c *client.Client) error {
		_, err := c.SetNode(t.Context(), "gpu-1", wire.NodeChange{Labels: map[string]string{"rack": "r8"}})
		return err
	}
	read := func(c *client.Client) error {
		_, err := c.ServerVersion(t.Context())
		return err
	}
	for name, tc := range map[string]struct {
		flaky *flaky
		call  func(*client.Client) error
		kind  schema.Kind
		seen  int32
	}{
		"a read":                           {&flaky{status: 503, failures: 2}, read, "", 3},
		"a keyed request that had effect":  {&flaky{status: 503, failures: 2, after: true}, register, "", 3},
		"a change without a key":           {&flaky{status: 503, failures: 1}, set, schema.KindServiceUnavailable, 1},
		"a change that was rate limited":   {&flaky{status: 429, failures: 1}, set, schema.KindNotFound, 2},
		"an error of the server":           {&flaky{status: 500, failures: 1}, read, schema.KindInternal, 1},
		"a server that stays unavailable":  {&flaky{status: 503, failures: 99}, read, schema.KindServiceUnavailable, 5},
		"a server that needs an hour":      {&flaky{status: 503, failures: 99, pause: "3600"}, read, schema.KindServiceUnavailable, 1},
		"a proxy that has lost its server": {&flaky{status: 502, failures: 1}, read, schema.KindServiceUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, apitest.New(t, tc.flaky.wrap).URL)
			assert.Equal(t, tc.kind, schema.KindOf(tc.call(c)))
			assert.Equal(t, tc.seen, tc.flaky.seen.Load())
		})
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	c := dial(t, apitest.New(t, nil).URL)
	ctx := client.WithIdempotencyKey(t.Context(), "import-1")
	first, err := c.RegisterNode(ctx, registration("gpu-1"))
	require.NoError(t, err)
	again, err := c.RegisterNode(ctx, registration("gpu-1"))
	require.NoError(t, err)
	assert.Equal(t, first.ID, again.ID)
	_, err = c.RegisterNode(ctx, registration("gpu-2"))
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindKeyInUse})
	_, err = c.RegisterNode(t.Context(), registration("gpu-1"))
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "host_taken"})
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for address, valid := range map[string]bool{
		"https://gpuaas.example.com": true, "https://gpuaas.example.com:8081/": true, "http://localhost:8081": true, "http://[::1]:8081": true,
		"http://gpuaas.example.com": false, "https://user:password@gpuaas.example.com": false, "gpuaas.example.com": false,
		"ftp://gpuaas.example.com": false, "https://gpuaas.example.com?x=1": false, "": false,
	} {
		_, err := client.New(address)
		assert.Equal(t, valid, err == nil, "%q: %v", address, err)
		if err != nil {
			assert.NotContains(t, err.Error(), "password")
		}
	}
	_, err := client.New("http://gpuaas.example.com", client.WithInsecureHTTP())
	require.NoError(t, err)
}

// A redirect is an error: the token must not follow it.
func TestRedirect(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	_, err := dial(t, server.URL).ServerVersion(t.Context())
	require.Error(t, err)
	assert.False(t, reached.Load())
}

func TestCAFile(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pemOf(server), 0o600))
	_, err := dial(t, server.URL, client.WithCAFile(file)).ServerVersion(t.Context())
	require.NoError(t, err)
	_, err = dial(t, server.URL).ServerVersion(t.Context())
	require.ErrorContains(t, err, "certificate", "and it is not sent again")
	_, err = client.New(server.URL, client.WithCAFile(file), client.WithHTTPClient(server.Client()))
	require.Error(t, err)
}
