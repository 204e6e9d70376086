package workload

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Defaults of the workload drivers.
const (
	DefaultSlice = "gpuaas-workloads.slice"
	DefaultLabel = "gpuaas.workload"
)

// Driver is the port of the workload drivers: it lists and stops a node's
// workloads. Methods are safe for concurrent use.
type Driver interface {
	// List returns what runs now, sorted by name.
	List(ctx context.Context) ([]task.Workload, error)
	// Stop asks a workload to end and returns without waiting. The request
	// is durable before the workload receives it, and a workload receives it once,
	// even when Stop is called again or the agent crashes in between. Stopping a
	// workload that does not run is not an error.
	Stop(ctx context.Context, name string) error
	// Kill ends a workload by force. It may be called again.
	Kill(ctx context.Context, name string) error
	// Run supervises until ctx ends, and leaves the workloads running.
	Run(ctx context.Context)
}

// Config is what a driver depends on.
type Config struct {
	// Slice is the systemd driver's slice.
	Slice string
	// Label marks the docker driver's containers.
	Label string
	// State is where a driver stores its durable records.
	State disk.StateDir
	// Cordoned reports whether new workloads must not start.
	Cordoned func() bool
	// Changed must be called when the list changed.
	Changed func()
	// ReadOnly requests a driver that only lists workloads and writes nothing.
	ReadOnly bool
	Log      *slog.Logger
}

// Maker makes a driver.
type Maker func(Config) (Driver, error)

// NewNone makes the driver of a node of which an operator said that it runs no workloads.
func NewNone(Config) (Driver, error) { return Unmanaged{}, nil }

// NewUnset makes the driver of a node without a configured one. What runs there is unknown.
func NewUnset(Config) (Driver, error) { return unset{}, nil }

// unset is the driver of a node without a configured one.
type unset struct{ Unmanaged }

// List implements Driver.
func (unset) List(context.Context) ([]task.Workload, error) {
	return []task.Workload{{Name: "no workload driver is configured (GPUAAS_WORKLOAD_DRIVER)", Kind: task.KindUnknown}}, nil
}

// Timings of the drivers that ask another program.
const (
	watchEvery     = 15 * time.Second
	commandTimeout = 30 * time.Second
	commandBytes   = 4 << 20
)

// program is the command of a driver. Its list has no change events and is polled.
type program struct {
	path    string
	changed func()
	log     *slog.Logger
}

// run runs the program with a bounded time and output, and returns its output. An
// error carries its error output.
func (p program) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, stderr, err := command.Runner{}.Run(ctx, commandBytes, p.path, args...)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", p.path, args[0], err, text.Sanitize(text.Truncate(strings.TrimSpace(stderr))))
	}
	return out, nil
}

// watch lists at intervals until ctx ends, and reports changes.
func (p program) watch(ctx context.Context, list func(context.Context) ([]task.Workload, error)) {
	var last []task.Workload
	for {
		now, err := list(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.log.Warn("cannot list workloads", "err", err.Error())
		case !slices.Equal(last, now):
			last = now
			p.changed()
		}
		if wait.Sleep(ctx, watchEvery) != nil {
			return
		}
	}
}

// sortWorkloads orders a list by name.
func sortWorkloads(list []task.Workload) {
	slices.SortFunc(list, func(a, b task.Workload) int { return strings.Compare(a.Name, b.Name) })
}

// Unmanaged is the driver of a node without workloads.
type Unmanaged struct{}

// List implements Driver.
func (Unmanaged) List(context.Context) ([]task.Workload, error) { return []task.Workload{}, nil }

// Stop implements Driver.
func (Unmanaged) Stop(context.Context, string) error { return nil }

// Kill implements Driver.
func (Unmanaged) Kill(context.Context, string) error { return nil }

// Run implements Driver.
func (Unmanaged) Run(ctx context.Context) { <-ctx.Done() }
