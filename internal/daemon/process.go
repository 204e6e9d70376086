package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

// stopGrace is how long goroutines may take to end after the drain timeout.
const stopGrace = 3 * time.Second

// Process is a running daemon. It owns every goroutine of the program: the first
// that fails stops the others, and the functions registered with OnClose run only after
// all of them have ended.
//
// A stop has these steps: /readyz turns 503; the process keeps working for the
// lame-duck period; the context of Start ends, so servers drain and goroutines
// finish within the drain timeout; OnClose's functions run; the metrics listener
// closes.
type Process struct {
	// Log is the process's logger.
	Log *slog.Logger
	// Registry is what /metrics shows, Metrics the metrics that programs share.
	Registry *prometheus.Registry
	Metrics  *Metrics
	Health   *Health
	// Clocks compares the clocks of the servers with this machine's.
	Clocks *Clocks
	// Tracer makes the process's spans; nil if traces are not exported.
	Tracer trace.Tracer

	config *Common
	// onStop calls f at the stop signal, unless cancel was called before.
	onStop func(f func()) (cancel func() bool)
	fail   context.CancelCauseFunc

	group   sync.WaitGroup
	mu      sync.Mutex
	running []string
	closers []func()
}

func newProcess(c *Common, log *slog.Logger) *Process {
	reg := newRegistry()
	return &Process{Log: log, Registry: reg, Metrics: newMetrics(reg), Health: newHealth(log, reg, c.ProbeEvery), Clocks: NewClocks(reg), config: c}
}

// Go runs f in a goroutine of the process. f must return when ctx, which is the
// context of Start, has ended. An error that f returns before that stops the
// process.
func (p *Process) Go(ctx context.Context, name string, f func(ctx context.Context) error) {
	p.mu.Lock()
	p.running = append(p.running, name)
	p.mu.Unlock()
	p.group.Go(func() {
		err := f(ctx)
		if err != nil && ctx.Err() == nil {
			p.fail(fmt.Errorf("%s: %w", name, err))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.Index(p.running, name)
		p.running = slices.Delete(p.running, i, i+1)
	})
}

// OnClose registers a function that runs after all goroutines of the process have
// ended, in reverse order of registration.
func (p *Process) OnClose(f func()) { p.closers = append(p.closers, f) }

// Dependency is a service that a process needs for its start.
type Dependency struct {
	// Name completes "waiting for" on /readyz and in the log.
	Name string
	// Open connects to the service.
	Open func(ctx context.Context) error
}

// Connect opens the dependencies in order, each with retries and growing pauses;
// /readyz names the one that the process waits for. It returns an error when the
// process is stopped first, or when the error is of KindInvalidRequest, which a
// retry cannot fix.
func (p *Process) Connect(ctx context.Context, dependencies ...Dependency) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.onStop(cancel)()
	for _, d := range dependencies {
		p.Health.block("waiting for " + d.Name)
		err := Retry(ctx, func() error {
			err := d.Open(ctx)
			if schema.KindOf(err) == schema.KindInvalidRequest {
				err = backoff.Permanent(err)
			}
			return err
		}, func(err error, pause time.Duration) {
			p.Log.Warn("waiting", slog.String("for", d.Name), slog.Any("err", err), slog.String("next", schema.AsError(err).Next),
				slog.Duration("retry_in", pause))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Listen opens a TCP listener. variable names the setting that holds the address,
// for the error. A peer that vanished is found within 45 s.
func (p *Process) Listen(ctx context.Context, variable, address string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	ln, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "%s", variable)
	}
	return ln, nil
}

// Serve runs the server on the listener until ctx ends, then lets requests in
// progress finish within the drain timeout. It serves TLS when the server has a
// TLS configuration. /livez and /readyz are added to the server's handler.
func (p *Process) Serve(ctx context.Context, name string, ln net.Listener, s *http.Server) {
	s.Handler = p.Health.Wrap(p.traced(name, s.Handler))
	p.Go(ctx, name+" listener", func(context.Context) error {
		serve := s.Serve
		if s.TLSConfig != nil {
			serve = func(ln net.Listener) error { return s.ServeTLS(ln, "", "") }
		}
		err := serve(ln)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serving on %s: %w", ln.Addr(), err)
	})
	p.Go(ctx, name+" shutdown", func(ctx context.Context) error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.DrainTimeout)
		defer cancel()
		if err := s.Shutdown(drain); err != nil {
			p.Log.Warn("requests aborted at the stop", slog.String("listener", name), slog.Any("err", err))
			_ = s.Close() // the connections that are left are closed either way
		}
		return nil
	})
}

// run is the life of the process; ctx ends at the stop signal.
func (p *Process) run(ctx context.Context, start func(ctx context.Context, p *Process) error) error {
	work, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	defer fail(nil)
	p.fail = fail
	p.onStop = func(f func()) func() bool { return context.AfterFunc(ctx, f) }
	closeMetrics, err := p.serveMetrics(work)
	if err != nil {
		return err
	}
	defer closeMetrics()
	p.Log.Info("starting", slog.String("version", version.Version()), slog.String("metrics", p.config.MetricsAddr))
	if err := start(work, p); err != nil {
		if ctx.Err() == nil {
			fail(err)
		}
		return p.finish(work)
	}
	p.Health.probeAll(work)
	p.Go(work, "health checks", p.Health.run)
	p.Health.block("")
	notify(p.Log, systemd.SdNotifyReady)
	p.Log.Info("ready")
	select {
	case <-ctx.Done():
		p.lameDuck(work)
	case <-work.Done():
	}
	return p.finish(work)
}

// lameDuck keeps the process working while load balancers find it unready.
func (p *Process) lameDuck(work context.Context) {
	p.Log.Info("stopping", slog.Duration("lame_duck", p.config.LameDuck))
	p.Health.block("stopping")
	notify(p.Log, systemd.SdNotifyStopping)
	timer := time.NewTimer(p.config.LameDuck)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-work.Done():
	}
}

// finish ends the work, waits for all goroutines, closes what they used, and
// returns why the process failed, nil when it did not.
func (p *Process) finish(work context.Context) error {
	p.Health.block("stopping")
	p.fail(nil)
	ended := make(chan struct{})
	go func() {
		p.group.Wait()
		close(ended)
	}()
	timer := time.NewTimer(p.config.DrainTimeout + stopGrace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Errorf("still running after the drain timeout: %s", strings.Join(p.running, ", "))
	}
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	if cause := context.Cause(work); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// serveMetrics opens the metrics listener, which outlives the work, together with
// systemd's watchdog.
func (p *Process) serveMetrics(ctx context.Context) (stop func(), err error) {
	ln, err := p.Listen(ctx, "GPUAAS_METRICS_ADDR", p.config.MetricsAddr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metricsHandler())
	server := &http.Server{Handler: p.Health.Wrap(mux), ReadHeaderTimeout: probeBudget}
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			p.fail(fmt.Errorf("serving on %s: %w", ln.Addr(), err))
		}
	})
	group.Go(func() { watchdog(alive, p.Log) })
	return func() {
		cancel()
		_ = server.Close() // an aborted scrape is repeated
		group.Wait()
	}, nil
}

// metricsHandler serves the metrics, with exemplars to a scraper that accepts OpenMetrics.
func (p *Process) metricsHandler() http.Handler {
	return promhttp.HandlerFor(p.Registry, promhttp.HandlerOpts{Registry: p.Registry, EnableOpenMetrics: true})
}
