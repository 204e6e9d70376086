package worker

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"time"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// silenceEvery is the interval between searches for nodes without heartbeats.
const silenceEvery = 30 * time.Second

// Main is the whole program and returns its exit code. args are the arguments
// after the program's name. The worker stops when ctx ends.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	return daemon.Main(ctx, program(defaults()), args, getenv, stdout, stderr)
}

func program(c *config) daemon.Program {
	return daemon.Program{
		Name:   "gpuaas-worker",
		About:  "gpuaas-worker runs lifecycle workflows and their activities on Temporal's task queue \"" + lifecycle.TaskQueue + "\".",
		Config: c,
		Start:  func(ctx context.Context, p *daemon.Process) error { return start(ctx, p, c) },
	}
}

// start connects the adapters and runs the worker.
func start(ctx context.Context, p *daemon.Process, c *config) error {
	parts := &parts{Process: p, cfg: c, metrics: newMetrics(p.Registry)}
	if err := parts.connect(ctx); err != nil {
		return err
	}
	parts.compareClocks(ctx)
	if err := serveImage(ctx, p, &c.ProviderSettings); err != nil {
		return err
	}
	fatal := make(chan error, 1)
	if err := startTrust(ctx, parts, fatal); err != nil {
		return err
	}
	var w worker.Worker
	err := p.Connect(ctx, daemon.Dependency{Name: "a start of the Temporal worker", Open: func(context.Context) error {
		o := options(c, parts.store.Connections(), fatal)
		o.Interceptors = append(o.Interceptors, parts.temporal.UpdateGuard())
		w = worker.New(parts.temporal.SDK(), lifecycle.TaskQueue, o)
		register(w, parts, c.Env)
		err := w.Start()
		if err == nil {
			return nil
		}
		return schema.Wrap(schema.KindServiceUnavailable, err, "starting the worker at Temporal %s", parts.temporal.Address())
	}})
	served := newVersions(parts.temporal.Deployments, c.build(), p.Log)
	p.Health.Add("temporal", parts.temporal.Healthy)
	p.Health.Add("version", served.Healthy)
	p.Health.AddDegrading("clock", p.Clocks.Check)
	p.Health.Add("task-signer", func(context.Context) error { return parts.sets.Healthy() })
	if err != nil {
		return err
	}
	p.Go(ctx, "Temporal worker", func(ctx context.Context) error {
		defer w.Stop()
		select {
		case <-ctx.Done():
			return nil
		case err := <-fatal:
			return err
		}
	})
	p.Go(ctx, "versions", served.Run)
	p.Go(ctx, "silent nodes", func(ctx context.Context) error { return watchSilence(ctx, parts.store.Inventory, p.Log) })
	p.Go(ctx, "providers", func(ctx context.Context) error { return describeUntil(ctx, parts.store.Inventory, c.infos(), p.Log) })
	p.Go(ctx, "removals", removals{parts.store.Identities, timelySigner{parts.vault, p.Clocks}, c.Env, p.Log}.run)
	p.Go(ctx, "audit checkpoints", checkpoints{parts.store.Checkpoints, parts.vault, p.Log, c.CheckpointEvery}.run)
	p.Go(ctx, "verifier sets", func(ctx context.Context) error { return parts.sets.Run(ctx, nil) })
	p.Log.Info("polling", slog.String("temporal", parts.temporal.Address()),
		slog.String("namespace", parts.temporal.Namespace()), slog.String("queue", lifecycle.TaskQueue), slog.String("version", c.build()))
	return nil
}

// startTrust runs the worker of the activities that use the root key, if this process has the
// rotator's login. It has no version: its activities work with every version of the workflows.
func startTrust(ctx context.Context, p *parts, fatal chan<- error) error {
	if p.rotator == nil {
		return nil
	}
	o := worker.Options{DisableRegistrationAliasing: true, WorkerStopTimeout: p.cfg.DrainTimeout, Identity: identity(),
		Interceptors: []interceptor.WorkerInterceptor{temporal.CodedErrors()}, OnFatalError: report(fatal)}
	w := worker.New(p.temporal.SDK(), lifecycle.TrustQueue, o)
	registerTrust(w, p, p.cfg.Env)
	err := p.Connect(ctx, daemon.Dependency{Name: "a start of the rotator", Open: func(context.Context) error {
		if err := w.Start(); err != nil {
			return schema.Wrap(schema.KindServiceUnavailable, err, "starting the rotator at Temporal %s", p.temporal.Address())
		}
		return nil
	}})
	if err != nil {
		return err
	}
	p.Go(ctx, "rotator", func(ctx context.Context) error {
		<-ctx.Done()
		w.Stop()
		return nil
	})
	return nil
}

// options are the Temporal worker's options. Nearly every activity is a short database
// call, so more slots than connections only wait for one, within their own time limits;
// twice the connections keeps each of them in use. fatal receives the error of a worker
// that cannot continue.
func options(c *config, connections int, fatal chan<- error) worker.Options {
	slots := cmp.Or(c.ActivitySlots, 2*connections)
	pollers := worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{
		InitialNumberOfPollers: 5, MinimumNumberOfPollers: 2, MaximumNumberOfPollers: max(5, slots),
	})
	o := worker.Options{
		DisableRegistrationAliasing:             true,
		WorkerStopTimeout:                       c.DrainTimeout,
		MaxConcurrentActivityExecutionSize:      slots,
		MaxConcurrentLocalActivityExecutionSize: slots,
		ActivityTaskPollerBehavior:              pollers,
		WorkflowTaskPollerBehavior:              pollers,
		Identity:                                identity(),
		Interceptors:                            []interceptor.WorkerInterceptor{temporal.CodedErrors()},
		OnFatalError:                            report(fatal),
	}
	if c.Versioning {
		o.DeploymentOptions = temporal.Versioned(c.build())
	}
	return o
}

// report returns a function that sends an error to fatal, unless one is there: the first is
// enough.
func report(fatal chan<- error) func(error) {
	return func(err error) {
		select {
		case fatal <- err:
		default:
		}
	}
}

// watchSilence marks nodes without heartbeats as offline until ctx ends, and returns
// nil then. Every worker may run it, because the change is one conditional update.
func watchSilence(ctx context.Context, s *store.Inventory, log *slog.Logger) error {
	tick := time.NewTicker(silenceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		lost, err := s.MarkSilent(ctx)
		if err != nil && ctx.Err() == nil {
			log.Warn("cannot find silent nodes", slog.Any("err", err))
		}
		for _, id := range lost {
			log.Warn("node is offline: no heartbeat", slog.String("node_id", id), slog.Duration("after", lifecycle.SilentAfter))
		}
	}
}
