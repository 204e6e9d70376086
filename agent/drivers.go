package agent

import (
	"maps"
	"slices"

	"github.com/gpuaas/gpuaas/agent/workload"
)

// Driver makes a workload driver.
type Driver func(DriverConfig) (workload.Driver, error)

// DriverConfig is what a driver depends on.
type DriverConfig = workload.Config

// driverNames lists the drivers that the configuration may name.
func (c Config) driverNames() []string {
	return append(slices.Sorted(maps.Keys(c.Drivers)), workload.NameSystemd, workload.NameDocker, workload.NameNone)
}

// newDriver makes the configured driver; d has what the configuration lacks.
func (c Config) newDriver(d DriverConfig) (workload.Driver, error) {
	d.Dir, d.Slice, d.Label = c.WorkloadDir, c.WorkloadSlice, c.WorkloadLabel
	if custom, ok := c.Drivers[c.WorkloadDriver]; ok {
		return custom(d)
	}
	switch c.WorkloadDriver {
	case workload.NameSystemd:
		return workload.NewSystemd(d)
	case workload.NameDocker:
		return workload.NewDocker(d)
	}
	return workload.NewNone(d)
}
