package worker

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// TestServeImage: a worker with the port serves the image until it stops, and nothing else. A
// worker whose port is in use does not start.
func TestServeImage(t *testing.T) {
	t.Parallel()
	dir, address := t.TempDir(), harness.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, libvirt.KernelFile), []byte("the kernel"), 0o600))
	start := func(log io.Writer, vars map[string]string) (code chan int, stop context.CancelFunc) {
		vars["POWERNODE_IMAGE_BASE"], vars["GPUAAS_METRICS_ADDR"] = dir, harness.FreeAddress(t)
		ctx, stop := context.WithCancel(t.Context())
		c := &struct {
			daemon.Common
			ProviderSettings
		}{Common: defaults().Common}
		code = make(chan int, 1)
		go func() {
			code <- daemon.Main(ctx, daemon.Program{Name: "test", Config: c, Start: func(ctx context.Context, p *daemon.Process) error {
				return serveImage(ctx, p, &c.ProviderSettings)
			}}, nil, env(vars), io.Discard, log)
		}()
		return code, stop
	}
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, ""
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	code, stop := start(io.Discard, map[string]string{"POWERNODE_LIBVIRT_MODE": "real", "GPUAAS_LIBVIRT_NETBOOT_PORT": port})
	defer stop()
	harness.Eventually(t, "the worker serves the image", func() bool { _, text := get("/" + libvirt.KernelFile); return text == "the kernel" })
	for _, path := range []string{"/readyz", "/livez", "/metrics", "/"} {
		status, _ := get(path)
		require.Equal(t, http.StatusNotFound, status, path)
	}
	log := &harness.Buffer{}
	second, _ := start(log, map[string]string{"POWERNODE_LIBVIRT_MODE": "real", "GPUAAS_LIBVIRT_NETBOOT_PORT": port})
	require.Equal(t, schema.ExitFailed, harness.Receive(t, "the second worker ends", second))
	require.Contains(t, log.String(), "GPUAAS_LIBVIRT_NETBOOT_PORT")
	require.Contains(t, log.String(), "address already in use")
	stop()
	require.Equal(t, schema.ExitDone, harness.Receive(t, "the worker stops", code))
	status, _ := get("/" + libvirt.KernelFile)
	require.Zero(t, status)
}
