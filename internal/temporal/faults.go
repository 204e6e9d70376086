package temporal

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

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

// scheduleFaults returns the fault of a schedule, if any.
func (p prober) scheduleFaults(ctx context.Context, s lifecycle.Schedule) ([]wire.ControlPlaneFault, error) {
	name := "the schedule " + s.ID + " (" + strings.ToLower(s.Does[:1]) + s.Does[1:] + ")"
	fault := func(reason, message, next string) ([]wire.ControlPlaneFault, error) {
		return []wire.ControlPlaneFault{{Component: s.ID, Reason: reason, Message: name + message, Next: next}}, nil
	}
	d, err := p.conn.sdk.ScheduleClient().GetHandle(ctx, s.ID).Describe(ctx)
	switch {
	case is[*serviceerror.NotFound](err):
		return fault("absent", " does not exist", "gpuaas admin setup")
	case err != nil:
		return nil, err
	case d.Schedule.State.Paused:
		return fault("paused", " is paused: "+d.Schedule.State.Note,
			"temporal schedule toggle --schedule-id "+s.ID+" --unpause --reason "+lifecycle.ReasonPlaceholder)
	}
	recent, since := d.Info.RecentActions, d.Info.CreatedAt
	if n := len(recent); n > 0 {
		since = recent[n-1].ActualTime
	}
	ended, err := p.lastRun(ctx, recent)
	switch {
	case err != nil:
		return nil, err
	case ended != "":
		return fault("failing", ": its last run "+ended,
			"inspect the runs of "+s.Workflow+" in the Web UI, and check that a gpuaas-worker is up")
	case time.Since(since) > s.StalledAfter():
		return fault("stalled", " started no run since "+since.UTC().Format(time.RFC3339), "gpuaas admin setup")
	}
	return nil, nil
}

// lastRun returns the failure of the last finished run, "" if it succeeded.
func (p prober) lastRun(ctx context.Context, recent []client.ScheduleActionResult) (string, error) {
	for _, a := range slices.Backward(recent) {
		if a.StartWorkflowResult == nil {
			continue
		}
		run, err := p.conn.sdk.DescribeWorkflowExecution(ctx, a.StartWorkflowResult.WorkflowID, a.StartWorkflowResult.FirstExecutionRunID)
		if is[*serviceerror.NotFound](err) {
			continue
		}
		if err != nil {
			return "", err
		}
		switch status := run.GetWorkflowExecutionInfo().GetStatus(); status {
		case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
		case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
			return "", nil
		default:
			return "ended as " + status.String(), nil
		}
	}
	return "", nil
}
