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

// sweepConfig is the configuration of the sweep.
type sweepConfig struct {
	Sweep string `env:"GPUAAS_SWEEP" envDefault:"report" help:"What happens to machines whose instance ended: report lists them in 'gpuaas stuck', delete also deletes them after 30 minutes. All workers need the same value. A machine that the database does not have is only reported."`
}

// Check reports a fault in the value.
func (c *sweepConfig) Check(f *daemon.Faults) {
	f.Check(c.Sweep != sweepReports && c.Sweep != sweepDeletes, "GPUAAS_SWEEP must be %s or %s", sweepReports, sweepDeletes)
}

// sweep returns the activity that finds machines that no instance owns.
func (p *parts) sweep() *activities.Sweep {
	return &activities.Sweep{Leftovers: p.store.Leftovers, Providers: p.cfg.sources, Deletes: p.cfg.Sweep == sweepDeletes}
}
