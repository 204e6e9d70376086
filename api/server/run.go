package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// The budgets of a stop: it ends within ten seconds.
const (
	drainBudget = 6 * time.Second
	retryMin    = 250 * time.Millisecond
	retryMax    = 5 * time.Second
)

// version is set by the build.
var version = "dev"

// Main is the whole program and returns its exit code: args are the arguments
// after the program's name. The server stops when ctx ends.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	switch {
	case slices.Contains(args, "--help") || slices.Contains(args, "-h"):
		fmt.Fprint(stdout, usage)
		return schema.ExitDone
	case len(args) == 1 && args[0] == "version":
		fmt.Fprintln(stdout, version)
		return schema.ExitDone
	case len(args) > 0:
		fmt.Fprint(stderr, usage)
		return schema.ExitUsage
	}
	cfg, err := configFromEnv(getenv)
	if err != nil {
		fmt.Fprintf(stderr, "gpuaas-api: %s\n%s\n", err, schema.AsError(err).Next)
		return schema.ExitUsage
	}
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: cfg.logLevel}))
	if err := serve(ctx, cfg, log); err != nil {
		log.Error("stopped", slog.Any("err", err))
		return schema.ExitFailed
	}
	log.Info("stopped")
	return schema.ExitDone
}

// serve runs the API until ctx ends. The addresses are taken first, so that a
// port in use is known at once; the admin API answers 503 until every part is
// there, and the node API's connections wait.
func serve(ctx context.Context, cfg config, log *slog.Logger) error {
	a, err := newApp(cfg, log)
	if err != nil {
		return err
	}
	defer a.close()
	ln, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	defer ln.close()
	warnExposed(cfg, log)
	log.Info("starting", slog.String("version", version), slog.String("admin", ln.admin.Addr().String()),
		slog.String("node", ln.node.Addr().String()), slog.String("metrics", ln.metrics.Addr().String()),
		slog.String("temporal", a.temporal.Address()), slog.String("env", cfg.env))

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	a.start(ctx, &group, ln.metrics, a.metricsServer(), cancel)
	a.start(ctx, &group, ln.admin, a.adminServer(), cancel)
	if a.connect(ctx) {
		a.work(ctx, &group)
		a.start(ctx, &group, ln.node, a.nodeServer(), cancel)
		log.Info("ready")
	}
	<-ctx.Done()
	log.Info("stopping")
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// start serves until ctx ends, then lets requests finish within drainBudget.
func (a *app) start(ctx context.Context, group *sync.WaitGroup, ln net.Listener, s *http.Server, fail context.CancelCauseFunc) {
	group.Go(func() {
		err := serveOn(ln, s)
		if !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("serving on %s: %w", ln.Addr(), err))
		}
	})
	group.Go(func() {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainBudget)
		defer cancel()
		if err := s.Shutdown(stop); err != nil {
			a.log.Warn("requests cut at the stop", slog.String("address", ln.Addr().String()), slog.Any("err", err))
			_ = s.Close() // what is left is cut; there is nothing more to do about it
		}
	})
}

func serveOn(ln net.Listener, s *http.Server) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(ln, "", "")
	}
	return s.Serve(ln)
}

// retry calls try until it succeeds or ctx ends, with a growing pause, and says
// what it waits for.
func retry(ctx context.Context, log *slog.Logger, what string, try func() error) bool {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		err := try()
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		log.Warn("waiting", slog.String("for", what), slog.Any("err", err), slog.String("next", schema.AsError(err).Next),
			slog.Duration("again_in", pause))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// listeners are the three addresses of the process.
type listeners struct{ admin, node, metrics net.Listener }

func listen(ctx context.Context, cfg config) (l listeners, err error) {
	for _, x := range []struct {
		name, addr string
		into       *net.Listener
	}{
		{"GPUAAS_METRICS_ADDR", cfg.metricsAddr, &l.metrics},
		{"GPUAAS_ADMIN_ADDR", cfg.adminAddr, &l.admin},
		{"GPUAAS_NODE_ADDR", cfg.nodeAddr, &l.node},
	} {
		lc := net.ListenConfig{KeepAliveConfig: keepAlive()}
		if *x.into, err = lc.Listen(ctx, "tcp", x.addr); err != nil {
			l.close()
			return l, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return l, nil
}

// keepAlive finds a peer that vanished within 45 s. A parked poll on HTTP/1.1 has
// nothing else that would.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}
}

func (l listeners) close() {
	for _, ln := range []net.Listener{l.admin, l.node, l.metrics} {
		if ln != nil {
			_ = ln.Close() // closed already by its server's shutdown
		}
	}
}

// warnExposed says so when the bearer token would cross a network in the clear.
func warnExposed(cfg config, log *slog.Logger) {
	host, _, _ := net.SplitHostPort(cfg.adminAddr)
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		log.Warn("the admin API speaks plain HTTP on an address that is not this machine's own; put TLS in front of it",
			slog.String("address", cfg.adminAddr))
	}
}
