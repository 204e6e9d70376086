package workflows

import (
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Provision makes a node one that can be given work: the machine is adopted or
// created, its agent heard, facts and probe compared with the SKU. Only then is
// the instance running. A mismatch parks; force accepts the machine as it is.
func Provision(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps: map[string]step{
			lifecycle.PhaseAdopt: adopt,
			lifecycle.PhaseAgent: hearAgent,
			lifecycle.PhaseFacts: collectFacts,
			lifecycle.PhaseProbe: probe,
			lifecycle.PhaseSKU:   compareSKU,
		},
		decisions: map[string][]lifecycle.Decision{
			lifecycle.PhaseProbe: {lifecycle.DecisionForce},
			lifecycle.PhaseSKU:   {lifecycle.DecisionForce},
		},
		undo: giveBack,
		finish: func(*operation) activities.Finish {
			return activities.Finish{
				Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning,
				Outcome: "running",
			}
		},
	})
}

// adopt takes the machine from its provider.
func adopt(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callProvider, spec.Budget, "", "Take the machine from provider "+op.claim.Provider)
	if err := workflow.ExecuteActivity(work, machine.EnsureMachine, activities.EnsureInput{
		Fence: op.claim.Fence, Provider: op.claim.Provider, Host: op.claim.Host,
	}).Get(ctx, nil); err != nil {
		return err
	}
	return op.advance(ctx, "Record the instance as provisioning",
		activities.Advance{Phase: spec.Name, Instance: lifecycle.InstanceProvisioning})
}

// hearAgent waits for a fresh heartbeat.
func hearAgent(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callWait, spec.Budget, "", "Wait for the agent's heartbeat")
	if err := workflow.ExecuteActivity(work, record.CheckAgent, op.in.NodeID).Get(ctx, nil); err != nil {
		return err
	}
	return op.advance(ctx, "Record the instance as bootstrapping",
		activities.Advance{Phase: spec.Name, Instance: lifecycle.InstanceBootstrapping})
}

func collectFacts(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	result, err := op.onNode(ctx, task.FactsCollect, nil, spec.Budget, "Collect the machine's facts")
	if err != nil {
		return err
	}
	if err := result.Decode(&op.facts); err != nil {
		return err
	}
	return op.advance(ctx, "Record the facts", activities.Advance{Phase: spec.Name, Facts: &op.facts})
}

// compareSKU holds what the machine is against what was registered.
func compareSKU(_ workflow.Context, op *operation, _ lifecycle.PhaseSpec) error {
	wrong := op.claim.SKU.Mismatches(op.claim.GPUsTotal, op.facts)
	if len(wrong) == 0 || op.forced {
		return nil
	}
	return schema.NewError(schema.KindUnfit, "the machine is no %s: %s", op.claim.SKU.Name, strings.Join(wrong, "; ")).
		WithReason("sku_mismatch")
}

// giveBack returns a machine whose provisioning was cancelled.
func giveBack(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callProvider, spec.Budget, "", "Give the machine back")
	if err := workflow.ExecuteActivity(work, machine.TearDownMachine, op.claim.Fence).Get(ctx, nil); err != nil {
		return err
	}
	return op.advance(ctx, "Record the instance as terminated",
		activities.Advance{Phase: spec.Name, Instance: lifecycle.InstanceTerminated})
}

func (op *operation) advance(ctx workflow.Context, summary string, a activities.Advance) error {
	return onRecord(ctx, summary, record.RecordProgress, op.progress(a), nil)
}
