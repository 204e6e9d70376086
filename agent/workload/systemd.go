package workload

import (
	"context"
	"strings"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// systemdDriver lists and stops the services and scopes of one slice, and of the slices
// below it, through D-Bus. systemd itself prevents a second stop request: it joins the
// running job. A unit's own TimeoutStopSec may end it by force before the drain's deadline.
type systemdDriver struct {
	watcher
	bus   bus
	slice string
}

// NewSystemd makes the driver of a systemd slice.
func NewSystemd(c Config) (Driver, error) {
	return &systemdDriver{watcher{c.Changed, c.Log}, systemBus(), c.Slice}, nil
}

// List implements Driver.
func (d *systemdDriver) List(ctx context.Context) ([]task.Workload, error) {
	units, err := d.bus.running(ctx, d.holds)
	if err != nil {
		return nil, err
	}
	list := make([]task.Workload, len(units))
	for i, u := range units {
		list[i] = task.Workload{Name: u.name, Kind: inventory.DriverSystemd, Since: u.since, Stopping: u.stopping}
	}
	sortWorkloads(list)
	return list, nil
}

// holds reports whether a unit's slice is the driver's or below it: a-b.slice is
// below a.slice.
func (d *systemdDriver) holds(slice string) bool {
	return slice == d.slice || strings.HasPrefix(slice, strings.TrimSuffix(d.slice, ".slice")+"-")
}

// Stop implements Driver.
func (d *systemdDriver) Stop(ctx context.Context, name string) error { return d.bus.stop(ctx, name) }

// Kill implements Driver.
func (d *systemdDriver) Kill(ctx context.Context, name string) error { return d.bus.kill(ctx, name) }

// Run implements Driver.
func (d *systemdDriver) Run(ctx context.Context) { d.watch(ctx, d.List) }
