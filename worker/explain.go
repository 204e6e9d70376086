package worker

import (
	"context"
	"maps"
	"slices"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
)

// explain returns the activity that finds the probable causes of parks.
func (p *parts) explain() *activities.Explain {
	return &activities.Explain{Causes: p.store.Insights, Providers: p.cfg.sources, Faults: p.faults}
}

// faults returns the faults of Temporal and of this worker's dependencies.
func (p *parts) faults(ctx context.Context) (faults []cause.Fault) {
	for _, f := range p.temporal.Faults(ctx) {
		faults = append(faults, cause.Fault(f))
	}
	down := p.Health.Unavailable()
	for _, name := range slices.Sorted(maps.Keys(down)) {
		e := schema.AsError(down[name])
		faults = append(faults, cause.Fault{Component: name, Reason: string(e.Kind), Message: e.Message, Next: e.Next})
	}
	return faults
}
