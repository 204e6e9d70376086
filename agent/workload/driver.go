package workload

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
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
	// List returns what runs now, in the order in which a drain stops it. A driver of several kinds
	// of workloads returns what it could list together with an error.
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

// Restorer is a Driver whose drain changes more than the workloads. Its methods may be
// called again, and do nothing the second time.
type Restorer interface {
	// Finish is called after a drain, once no workload runs.
	Finish(ctx context.Context) error
	// Restore reverts what drains changed for the named workloads, for all if there are no
	// names. It starts no workload. What it could not revert, it records, so that Run tries
	// again while the node is not cordoned.
	Restore(ctx context.Context, names ...string) error
}

// finish calls Finish if the driver is a Restorer.
func finish(ctx context.Context, d Driver) error {
	if r, ok := d.(Restorer); ok {
		return r.Finish(ctx)
	}
	return nil
}

// restore calls Restore if the driver is a Restorer.
func restore(ctx context.Context, d Driver, names ...string) error {
	if r, ok := d.(Restorer); ok {
		return r.Restore(ctx, names...)
	}
	return nil
}

// Cordoner is a Driver with a scheduler of its own, which must place no new workloads on a
// cordoned node. Its method may be called again.
type Cordoner interface {
	// Cordon closes the node to the scheduler, or opens it unless someone else closed it. What
	// fails, Run tries again.
	Cordon(ctx context.Context, on bool) error
}

// cordon calls Cordon if the driver is a Cordoner.
func cordon(ctx context.Context, d Driver, on bool) error {
	if c, ok := d.(Cordoner); ok {
		return c.Cordon(ctx, on)
	}
	return nil
}

// Leaver is a Driver with a record of the node in another system.
type Leaver interface {
	// Leave deletes the record, before the node is removed. It may be called again.
	Leave(ctx context.Context) error
}

// leave calls Leave if the driver is a Leaver.
func leave(ctx context.Context, d Driver) error {
	if l, ok := d.(Leaver); ok {
		return l.Leave(ctx)
	}
	return nil
}

// Config is what a driver depends on.
type Config struct {
	// Slice is the systemd driver's slice.
	Slice string
	// Label marks the docker driver's containers.
	Label string
	// DockerHost is the address of the Docker daemon; see DockerSocket. Defaults to
	// DefaultDockerHost.
	DockerHost string
	// StopDocker requests that a drain stops the Docker daemon after the containers.
	StopDocker bool
	// Kubernetes configures the kubernetes driver.
	Kubernetes Kubernetes
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

// Limits of the drivers that ask another program.
const (
	watchEvery     = 15 * time.Second
	commandTimeout = 30 * time.Second
	commandBytes   = 4 << 20
)

// watcher polls the list of a driver that has no change events.
type watcher struct {
	changed func()
	log     *slog.Logger
}

// watch lists at intervals until ctx ends, and reports changes.
func (p watcher) watch(ctx context.Context, list func(context.Context) ([]task.Workload, error)) {
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
