package worker

import (
	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
)

// The values of GPUAAS_SWEEP.
const (
	sweepReports = "report"
	sweepDeletes = "delete"
)

// checkSweep adds a fault unless the value of GPUAAS_SWEEP is one of them.
func checkSweep(f *daemon.Faults, value string) {
	f.Check(value != sweepReports && value != sweepDeletes, "GPUAAS_SWEEP must be %s or %s", sweepReports, sweepDeletes)
}

// sweep returns the activity that finds machines that no instance owns.
func (p *parts) sweep() *activities.Sweep {
	return &activities.Sweep{Surplus: p.store.Surplus, Providers: p.cfg.sources, Deletes: p.cfg.Sweep == sweepDeletes}
}
