package daemon

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRequestReady(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(http.StatusOK)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/readyz", r.URL.Path)
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write([]byte("postgres unavailable"))
	}))
	address := strings.TrimPrefix(s.URL, "http://")
	_, port, _ := strings.Cut(address, ":")
	for _, listen := range []string{address, ":" + port, "0.0.0.0:" + port} {
		require.NoError(t, requestReady(t.Context(), listen), listen)
	}
	status.Store(http.StatusServiceUnavailable)
	require.ErrorContains(t, requestReady(t.Context(), address), "503 Service Unavailable: postgres unavailable")
	s.Close()
	require.Error(t, requestReady(t.Context(), address))
	require.Error(t, requestReady(t.Context(), "9090"))
}

// TestDetachedMetrics: a program that uses neither Vault nor the verifier sets does not publish gauges
// about them, whose 0 an alert takes for a fault.
func TestDetachedMetrics(t *testing.T) {
	t.Parallel()
	p := newProcess(&Common{ProbeEvery: 1}, slog.New(slog.DiscardHandler))
	names := func() (names []string) {
		families, err := p.Registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			names = append(names, f.GetName())
		}
		return names
	}
	require.Contains(t, names(), "gpuaas_task_signer_ok")
	p.Metrics.detach(p.Registry)
	require.NotContains(t, names(), "gpuaas_task_signer_ok")
	require.NotContains(t, names(), "gpuaas_vault_secret_id_expiry_seconds")
	require.Contains(t, names(), "gpuaas_build_info")
}
