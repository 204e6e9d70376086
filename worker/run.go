package worker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

const (
	// startEvery is how long a worker waits before it tries again to reach its
	// parts: services may come up in any order.
	startEvery = 2 * time.Second
	// stopBudget is how long running activities may go on after a stop signal.
	stopBudget = 10 * time.Second
	// watchEvery is how often silent nodes are looked for.
	watchEvery = 30 * time.Second
)

// Main runs a worker until ctx ends and returns its exit code.
func Main(ctx context.Context, getenv func(string) string, stderr io.Writer) int {
	cfg, err := ConfigFromEnv(getenv)
	if err != nil {
		fmt.Fprintln(stderr, "gpuaas-worker:", err)
		return schema.ExitUsage
	}
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if err := Run(ctx, cfg, log); err != nil && ctx.Err() == nil {
		log.Error("worker ended", "err", err.Error())
		return schema.ExitFailed
	}
	log.Info("worker stopped")
	return schema.ExitDone
}

// Run runs a worker until ctx ends. It waits for parts that are away at the
// start; its health says so meanwhile.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	health := &health{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHealth(ctx, cfg.MetricsAddr, reg, health) })
	group.Go(func() error { return serve(ctx, cfg, reg, health, log) })
	return group.Wait()
}

func serve(ctx context.Context, cfg Config, reg *prometheus.Registry, h *health, log *slog.Logger) error {
	p, err := connectUntil(ctx, cfg, reg, h, log)
	if err != nil {
		return err
	}
	defer p.close()
	fatal := make(chan error, 1)
	w := worker.New(p.temporal.SDK(), lifecycle.TaskQueue, options(fatal))
	register(w, p, cfg.Env)
	if err := w.Start(); err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "starting the worker at Temporal %s", p.temporal.Address())
	}
	defer w.Stop()
	h.ready(p)
	log.Info("worker started", "temporal", p.temporal.Address(), "namespace", p.temporal.Namespace(), "queue", lifecycle.TaskQueue)
	go watchSilence(ctx, p.store, log)
	go p.sets.Run(ctx, nil)
	select {
	case <-ctx.Done():
		return nil
	case err := <-fatal:
		return schema.Wrap(schema.KindInternal, err, "the worker cannot go on")
	}
}

// options are the worker's; fatal gets the error of a worker that cannot go on,
// so that it does not look alive.
func options(fatal chan<- error) worker.Options {
	return worker.Options{
		DisableRegistrationAliasing: true,
		WorkerStopTimeout:           stopBudget,
		Interceptors:                []interceptor.WorkerInterceptor{temporal.CodedErrors()},
		OnFatalError:                func(err error) { fatal <- err },
	}
}

// connectUntil repeats connect until it succeeds or ctx ends. Each try has a
// registry of its own wrapped in the process's, so that a second one does not
// find the first one's metrics.
func connectUntil(ctx context.Context, cfg Config, reg *prometheus.Registry, h *health, log *slog.Logger) (*parts, error) {
	for {
		own := prometheus.NewRegistry()
		p, err := connect(ctx, cfg, own, log)
		if err == nil {
			return p, reg.Register(own)
		}
		if schema.KindOf(err) == schema.KindInvalidRequest || ctx.Err() != nil {
			return nil, err
		}
		h.waiting(err)
		log.Warn("waiting for a part", "err", err.Error(), "next", schema.AsError(err).Next)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(startEvery):
		}
	}
}

// watchSilence moves nodes whose agents fell silent to offline. Every worker
// may do so: the move is one conditional update.
func watchSilence(ctx context.Context, s *store.Store, log *slog.Logger) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		lost, err := s.MarkSilent(ctx, lifecycle.SilentAfter)
		if err != nil {
			log.Warn("looking for silent nodes", "err", err.Error())
		}
		for _, id := range lost {
			log.Warn("node is offline: no heartbeat", "node_id", id, "after", lifecycle.SilentAfter.String())
		}
	}
}
