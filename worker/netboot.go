package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"golang.org/x/net/netutil"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
)

// maxDownloads is the largest number of machines that load the image at the same time.
const maxDownloads = 64

// serveImage serves the image of virtual machines on the loopback interface, if they boot over
// HTTP. The server has no health endpoints: machines can reach it.
func serveImage(ctx context.Context, p *daemon.Process, c *ProviderSettings) error {
	if c.LibvirtPort == 0 || libvirt.Mode(c.LibvirtMode) != libvirt.Real {
		return nil
	}
	ln, err := p.Listen(ctx, "GPUAAS_LIBVIRT_NETBOOT_PORT", fmt.Sprintf("127.0.0.1:%d", c.LibvirtPort))
	if err != nil {
		return err
	}
	server := libvirt.ImageServer(c.ImageBase)
	server.ErrorLog = slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)
	p.Go(ctx, "image listener", func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = server.Close() })() // a machine repeats an aborted download
		if err := server.Serve(netutil.LimitListener(ln, maxDownloads)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving on %s: %w", ln.Addr(), err)
		}
		return nil
	})
	return nil
}
