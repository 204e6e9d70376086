package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// step is the body of a phase. It returns nil when the phase reached its goal.
// Waiting with retries belongs in an activity's retry policy.
type step func(ctx workflow.Context, op *operation) error

// steps holds the body of every phase in lifecycle's plans, except for the last
// phase of each plan, which is the record.
//
//nolint:gochecknoglobals // read-only table
var steps = map[string]step{
	lifecycle.PhaseBundle: awaitEnrollment(lifecycle.EventBundleIssued, func(e activities.Enrollment) bool { return e.BundleIssued }),
	lifecycle.PhaseClaim:  awaitEnrollment(lifecycle.EventTokenClaimed, func(e activities.Enrollment) bool { return e.TokenClaimed }),
	lifecycle.PhasePoll:   awaitEnrollment(lifecycle.EventFirstPoll, func(e activities.Enrollment) bool { return e.Polled }),

	lifecycle.PhaseAdopt:        adoptMachine,
	lifecycle.PhaseMachine:      awaitMachine,
	lifecycle.PhaseEnroll:       awaitBoot,
	lifecycle.PhaseAgent:        awaitAgent,
	lifecycle.PhaseSKU:          compareSKU,
	lifecycle.PhaseTeardown:     tearDownMachine,
	lifecycle.PhaseUndoAdopt:    returnMachine,
	lifecycle.PhaseUndoTeardown: verifyMachine,

	lifecycle.PhaseUpgrade:  upgradeAgent,
	lifecycle.PhaseIdentity: newIdentity,

	lifecycle.PhaseVerifyFault:    verifyFault,
	lifecycle.PhaseApproveReset:   approve,
	lifecycle.PhaseApproveReboot:  approve,
	lifecycle.PhaseResetGPU:       resetGPU,
	lifecycle.PhaseVerifyReset:    verifyRepair,
	lifecycle.PhaseReboot:         rebootNode,
	lifecycle.PhaseWaitReboot:     awaitReboot,
	lifecycle.PhaseVerifyReboot:   verifyRepair,
	lifecycle.PhaseApproveReplace: approve,
	lifecycle.PhaseReplace:        replaceMachine,
	lifecycle.PhaseVerifyReplace:  verifyRepair,
	lifecycle.PhaseRestoreCordon:  restoreCordon,
	lifecycle.PhaseEvidence:       keepEvidence,
	lifecycle.PhaseUndoRecover:    undoRecover,

	lifecycle.PhaseFacts:      collectFacts,
	lifecycle.PhaseProbe:      probeNode,
	lifecycle.PhaseCordon:     cordonNode,
	lifecycle.PhaseDrain:      evictWorkloads,
	lifecycle.PhaseIdle:       checkIdle,
	lifecycle.PhaseUncordon:   uncordonNode,
	lifecycle.PhaseUndoCordon: undoCordon,
}

// bodyOf returns the step body of a phase. A run keeps its plan, so a worker of
// another version may lack a body that the plan names: the operation then parks.
func bodyOf(phase string) (step, error) {
	if body, ok := steps[phase]; ok {
		return body, nil
	}
	return nil, schema.NewError(schema.KindInternal, "this worker has no step for phase %q", phase).
		WithReason(lifecycle.ReasonStepUnknown).WithNext("start a worker of the version that started the operation")
}
