package agent

import (
	"context"
	"log/slog"

	"github.com/gpuaas/gpuaas/schema"
)

// Workloads is what of a node's work the agent can see and end: the port of the
// workload drivers. Methods are safe for concurrent use.
type Workloads interface {
	// List returns what runs now, sorted by name.
	List(ctx context.Context) ([]schema.Workload, error)
	// Stop asks a workload to end and returns without waiting. The wish is
	// durable before the workload hears of it, and a workload hears of it once,
	// however often Stop is called and whatever crashes in between. Stopping
	// what does not run is no error.
	Stop(ctx context.Context, name string) error
	// Kill ends a workload by force. It may be called again.
	Kill(ctx context.Context, name string) error
	// Run supervises until ctx ends, and leaves the workloads running.
	Run(ctx context.Context)
}

// newWorkloads makes the configured driver. changed is called when the list
// changed.
func newWorkloads(c Config, s stateDir, f *flags, changed func(), log *slog.Logger) (Workloads, error) {
	switch c.WorkloadDriver {
	case DriverProcess:
		return newProcessDriver(c.WorkloadDir, s.disk, f.Cordoned, changed, log)
	default:
		return noWorkloads{}, nil
	}
}

// viewWorkloads makes a driver that only lists and writes nothing.
func viewWorkloads(c Config, s stateDir, f *flags, log *slog.Logger) (Workloads, error) {
	if c.WorkloadDriver == DriverProcess {
		p := &processDriver{dir: c.WorkloadDir, readOnly: true, log: log, host: newProcessTable(), procs: map[string]*process{}}
		return p, p.adopt()
	}
	return newWorkloads(c, s, f, func() {}, log)
}

// noWorkloads is the driver of a node whose work the agent does not manage.
type noWorkloads struct{}

// List implements Workloads.
func (noWorkloads) List(context.Context) ([]schema.Workload, error) { return []schema.Workload{}, nil }

// Stop implements Workloads.
func (noWorkloads) Stop(context.Context, string) error { return nil }

// Kill implements Workloads.
func (noWorkloads) Kill(context.Context, string) error { return nil }

// Run implements Workloads.
func (noWorkloads) Run(ctx context.Context) { <-ctx.Done() }
