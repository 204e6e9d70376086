package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// Workloads is what of a node's work the agent can see and end: the port of the
// workload drivers. Methods are safe for concurrent use.
type Workloads interface {
	// List returns what runs now, sorted by name.
	List(ctx context.Context) ([]task.Workload, error)
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
	case DriverSystemd:
		return &systemdDriver{slice: c.WorkloadSlice, watch: watch{changed, log}}, nil
	case DriverDocker:
		return newDockerDriver(c.WorkloadLabel, s, watch{changed, log})
	default:
		return noWorkloads{}, nil
	}
}

// viewWorkloads makes a driver that only lists and writes nothing.
func viewWorkloads(c Config, s stateDir, f *flags, log *slog.Logger) (Workloads, error) {
	if c.WorkloadDriver == DriverProcess {
		p := &processDriver{dir: c.WorkloadDir, readOnly: true, log: log, host: newProcessTable(), procs: map[string]*process{}}
		err := p.adopt()
		return p, err
	}
	return newWorkloads(c, s, f, func() {}, log)
}

// Timings of the drivers that ask another program.
const (
	watchEvery     = 15 * time.Second
	commandTimeout = 30 * time.Second
	commandBytes   = 4 << 20
)

// watch tells when a list that nobody announces has changed.
type watch struct {
	changed func()
	log     *slog.Logger
}

// run lists now and then until ctx ends.
func (w watch) run(ctx context.Context, list func(context.Context) ([]task.Workload, error)) {
	var last []task.Workload
	for {
		now, err := list(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.log.Warn("workloads cannot be listed", "err", err.Error())
		case !slices.Equal(last, now):
			last = now
			w.changed()
		}
		if pause(ctx, watchEvery) != nil {
			return
		}
	}
}

// runCommand runs a program with a bounded time and output, and returns what it
// wrote. An error carries what it complained about.
func runCommand(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, complaint, err := programs{}.run(ctx, commandBytes, name, args...)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, plain(clip(strings.TrimSpace(complaint))))
	}
	return out, nil
}

// sortWorkloads orders a list by name.
func sortWorkloads(list []task.Workload) {
	slices.SortFunc(list, func(a, b task.Workload) int { return strings.Compare(a.Name, b.Name) })
}

// noWorkloads is the driver of a node whose work the agent does not manage.
type noWorkloads struct{}

// List implements Workloads.
func (noWorkloads) List(context.Context) ([]task.Workload, error) { return []task.Workload{}, nil }

// Stop implements Workloads.
func (noWorkloads) Stop(context.Context, string) error { return nil }

// Kill implements Workloads.
func (noWorkloads) Kill(context.Context, string) error { return nil }

// Run implements Workloads.
func (noWorkloads) Run(ctx context.Context) { <-ctx.Done() }
