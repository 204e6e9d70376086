package temporal

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// faultBudget bounds Faults: a list of what is stuck waits for it.
const faultBudget = 3 * time.Second

// componentTemporal is the component of a fault of Temporal's own.
const componentTemporal = "temporal"

// prober looks for faults.
type prober struct{ conn *connection }

// probe looks for the faults of one component.
type probe struct {
	component string
	// reads completes "reading ...".
	reads string
	find  func(ctx context.Context) ([]wire.ControlPlaneFault, error)
}

func (p prober) probes() []probe {
	all := []probe{
		{componentWorker, "the task queue " + lifecycle.TaskQueue, p.workerFaults},
		{componentTasks, "running operations", p.taskFaults},
	}
	for _, s := range lifecycle.Schedules() {
		all = append(all, probe{s.ID, "the schedule " + s.ID, func(ctx context.Context) ([]wire.ControlPlaneFault, error) {
			return p.scheduleFaults(ctx, s)
		}})
	}
	return all
}

// Faults returns the faults of Temporal and of its workers that need an operator:
// Temporal does not respond, no worker polls or the workers are too slow, workflow
// tasks fail, activities are retried, or a schedule is absent, paused, failing or
// stalled. A probe that fails is a fault too and hides no other one. Faults takes at
// most faultBudget.
func (c *connection) Faults(ctx context.Context) []wire.ControlPlaneFault {
	ctx, cancel := context.WithTimeout(ctx, faultBudget)
	defer cancel()
	p := prober{c}
	probes := p.probes()
	found := make([][]wire.ControlPlaneFault, len(probes))
	var group sync.WaitGroup
	for i, of := range probes {
		group.Go(func() { found[i] = p.run(ctx, of) })
	}
	group.Wait()
	return oneUnreachable(slices.Concat(found...))
}

// run runs a probe. Its failure is a fault, too.
func (p prober) run(ctx context.Context, of probe) []wire.ControlPlaneFault {
	faults, err := of.find(ctx)
	if err == nil {
		return faults
	}
	e := schema.AsError(p.conn.interpret(err, "reading "+of.reads))
	if e.Kind == schema.KindServiceUnavailable {
		of.component = componentTemporal
	}
	return append(faults, wire.ControlPlaneFault{Component: of.component, Reason: string(e.Kind), Message: e.Message, Next: e.Next})
}

// oneUnreachable removes all but the first of the faults that say that Temporal does
// not respond.
func oneUnreachable(faults []wire.ControlPlaneFault) []wire.ControlPlaneFault {
	seen := false
	return slices.DeleteFunc(faults, func(f wire.ControlPlaneFault) bool {
		again := seen && f.Component == componentTemporal
		seen = seen || f.Component == componentTemporal
		return again
	})
}
