package clusteragent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

const apiKey = "key-of-the-test"

// civo is a double of Civo's API with one cluster.
type civo struct {
	mu        sync.Mutex
	instances []map[string]string
	status    int // of a restart
	reboots   []string
	faults    []string
}

func (c *civo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Header.Get("Authorization") != "bearer "+apiKey {
		c.faults = append(c.faults, "no key")
	}
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.Method == http.MethodGet && r.URL.String() == "/v2/kubernetes/clusters/cluster-1/instances?region=LON1":
		_ = json.NewEncoder(w).Encode(c.instances)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/hard_reboots"):
		if strings.TrimSpace(string(body)) != `{"region":"LON1"}` {
			c.faults = append(c.faults, "body "+string(body))
		}
		c.reboots = append(c.reboots, r.URL.Path)
		w.WriteHeader(c.status)
		_, _ = io.WriteString(w, `{"result":"`+apiKey+`"}`)
	default:
		c.faults = append(c.faults, r.Method+" "+r.URL.String())
		http.NotFound(w, r)
	}
}

func newCivo(t *testing.T) (*civo, *CivoExecutor) {
	t.Helper()
	c := &civo{status: http.StatusOK, instances: []map[string]string{{"id": "i-10", "hostname": "node-10"}, {"id": "i-1", "hostname": "node-1"}}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	e, err := NewCivoExecutor("cluster-1", WithAPIConfig(schema.NewSecret(apiKey), server.URL+"/", "LON1", "v1"))
	require.NoError(t, err)
	return c, e
}

func TestCivoReboot(t *testing.T) {
	t.Parallel()
	c, e := newCivo(t)
	require.NoError(t, e.Reboot(t.Context(), "node-1"))
	require.Equal(t, []string{"/v2/instances/i-1/hard_reboots"}, c.reboots)
	require.Empty(t, c.faults)
}

// Only the instance with exactly this host name restarts, and only a refusal says that none did.
func TestCivoFailures(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		set        func(c *civo)
		node, says string
		refused    bool
		calls      int
	}{
		{"no instance", func(*civo) {}, "node", "0 instances have the host name node", true, 0},
		{"two instances", func(c *civo) { c.instances[0]["hostname"] = "node-1" }, "node-1", "2 instances", true, 0},
		{"no ID", func(c *civo) { c.instances[1]["id"] = "" }, "node-1", "0 instances", true, 0},
		{"refused", func(c *civo) { c.status = http.StatusForbidden }, "node-1", `Civo responds 403: {"result":"…"}`, true, 1},
		{"redirected", func(c *civo) { c.status = http.StatusTemporaryRedirect }, "node-1", "Civo responds 307", true, 1},
		{"server error", func(c *civo) { c.status = http.StatusBadGateway }, "node-1", `Civo responds 502: {"result":"…"}`, false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, e := newCivo(t)
			test.set(c)
			err := e.Reboot(t.Context(), test.node)
			require.ErrorContains(t, err, test.says)
			require.NotContains(t, err.Error(), apiKey)
			require.Len(t, c.reboots, test.calls)
			if test.refused {
				require.ErrorIs(t, err, ErrNotRebooted)
			} else {
				require.NotErrorIs(t, err, ErrNotRebooted)
			}
		})
	}
}

// A call that hangs ends with its context. Before the request of the restart, nothing has happened.
func TestCivoHangs(t *testing.T) {
	t.Parallel()
	for hang, refused := range map[string]bool{http.MethodGet: true, http.MethodPost: false} {
		ctx, cancel := context.WithCancel(t.Context())
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != hang {
				_, _ = io.WriteString(w, `[{"id":"i-1","hostname":"node-1"}]`)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			cancel()
			<-r.Context().Done()
		}))
		t.Cleanup(server.Close)
		e, err := NewCivoExecutor("cluster-1", WithAPIConfig(schema.NewSecret(apiKey), server.URL, "", "v1"), WithClient(server.Client()))
		require.NoError(t, err)
		err = e.Reboot(ctx, "node-1")
		require.ErrorIs(t, err, context.Canceled)
		if refused {
			require.ErrorIs(t, err, ErrNotRebooted)
		} else {
			require.NotErrorIs(t, err, ErrNotRebooted)
		}
	}
}

func TestCivoConfiguration(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ cluster, key, url, says string }{
		{"", apiKey, "https://api.example.com", "the cluster ID of Civo must not be empty"},
		{"cluster-1", "", "https://api.example.com", "the API key of Civo must not be empty"},
		{"cluster-1", apiKey, "", "the API URL of Civo must not be empty"},
		{"cluster-1", apiKey, "api.example.com", "must be a URL"},
		{"cluster-1", apiKey, "https://user@api.example.com", "must be a URL without a user"},
		{"cluster-1", apiKey, "ftp://api.example.com", "must be a URL"},
		{"cluster-1", apiKey, "http://api.example.com", "must be an https URL"},
	} {
		_, err := NewCivoExecutor(test.cluster, WithAPIConfig(schema.NewSecret(test.key), test.url, "", ""))
		require.ErrorContains(t, err, test.says)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
		require.NotContains(t, err.Error(), apiKey)
	}
	_, err := NewCivoExecutor("cluster-1", WithAPIConfig(schema.NewSecret(apiKey), "https://api.example.com", "", ""))
	require.NoError(t, err)
}
