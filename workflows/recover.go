package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
)

// repair is how far a recover is.
type repair struct {
	// Ended is how the repair ended, empty while it climbs.
	Ended repairEnd `json:"ended,omitempty"`
	// Attempt is the rung that runs, nil between two rungs. Done are the rungs that ended.
	Attempt *recovery.Attempt  `json:"attempt,omitempty"`
	Done    []recovery.Attempt `json:"done,omitempty"`
	// Outcome is that of the rung that failed and was not left yet.
	Outcome string `json:"outcome,omitempty"`
	// TornDown is set once the deletion of the machine has begun, and Replaced once the node has its
	// next instance.
	TornDown bool `json:"torn_down,omitempty"`
	Replaced bool `json:"replaced,omitempty"`
	// Powered is set once the provider was asked to restart the machine.
	Powered bool `json:"powered,omitempty"`
}

// ladder is an operation that repairs its node.
type ladder struct{ *operation }

// repairEnd is how a repair ended before its last rung.
type repairEnd string

const (
	repairCured     repairEnd = "cured"      // the node passed its tests
	repairNotNeeded repairEnd = "not_needed" // the fault had ended
)

// passedOver returns why a repair passes over the current phase, empty if it runs.
func (op ladder) passedOver() string {
	spec := op.spec()
	switch {
	case op.plan.Action != lifecycle.ActionRecover:
		return ""
	case spec.Name == lifecycle.PhaseRestoreCordon && op.repair.Ended != repairCured:
		return "the node was not repaired"
	case spec.Name == lifecycle.PhaseRestoreCordon:
		return ""
	case op.repair.Ended == repairCured:
		return "the node is repaired"
	case op.repair.Ended == repairNotNeeded:
		return "the fault has ended"
	case spec.Rung == recovery.RungReplace && op.claim.Instance.InstanceID == "":
		return "the provider has not created the node's machine"
	case spec.Rung != "" && op.rungOver(spec.Rung):
		return "this rung of the repair has ended"
	}
	return ""
}

// rungOver reports whether a phase of the rung failed or was skipped.
func (op ladder) rungOver(r recovery.Rung) bool {
	for i, spec := range op.plan.Phases[:op.phase] {
		state := op.status.Operation.Phases[i].State
		if spec.Rung == r && (state == lifecycle.PhaseFailed || state == lifecycle.PhaseSkipped) {
			return true
		}
	}
	return false
}

// enterPhase prepares the current phase. A repair records the rung that ended, and passes over phases
// that are not needed any longer.
func (op ladder) enterPhase(ctx workflow.Context) (pass bool) {
	if a := op.repair.Attempt; a != nil && (op.repair.Ended != "" || op.rungOver(a.Rung)) {
		op.endAttemptAt(ctx, op.attemptOutcome())
	}
	why := op.passedOver()
	if why == "" && op.needsNoDrain(ctx) {
		why = "no rung is left that ends workloads"
	}
	if why != "" {
		op.mark(ctx, lifecycle.PhaseSkipped, why)
	}
	return why != ""
}

// attemptOutcome is the outcome of the rung that ended. Of one that an operator skipped before its tests, it is
// not known whether it was done.
func (op ladder) attemptOutcome() string {
	switch {
	case op.repair.Ended == repairCured:
		return recovery.OutcomeCured
	case op.repair.Outcome != "":
		return op.repair.Outcome
	case op.phase > 0 && isVerify(op.plan.Phases[op.phase-1].Name):
		return recovery.OutcomeNotCured
	}
	return recovery.OutcomeUnknown
}

// isVerify reports whether a phase tests the node after a rung.
func isVerify(phase string) bool {
	return slices.Contains([]string{lifecycle.PhaseVerifyReset, lifecycle.PhaseVerifyReboot, lifecycle.PhaseVerifyReplace}, phase)
}

// climb ends the rung of a phase that failed, if another rung follows, and reports whether it did. A
// failure of the control plane climbs nothing: it says nothing about the node. The drain of a node
// whose agent is silent is passed over: no one can stop its workloads.
func (op ladder) climb(ctx workflow.Context, failure error) (climbed bool, err error) {
	spec, e := op.spec(), failureOf(failure)
	if op.undoing || op.plan.Action != lifecycle.ActionRecover {
		return false, nil
	}
	if spec.Name == lifecycle.PhaseDrain && e.Kind == schema.KindAgentSilent {
		if err := voidTasks(ctx, op.operation, "Void the drain"); err != nil {
			return false, err
		}
		op.mark(ctx, lifecycle.PhaseSkipped, e.Message)
		return true, nil
	}
	if !op.failsRung(e) {
		return false, nil
	}
	// The next rung has tasks of its own, which must not run beside an open one.
	if err := voidTasks(ctx, op.operation, "Void the open tasks of the rung"); err != nil {
		return false, err
	}
	message := e.Message
	if e.Reason == lifecycle.ReasonTimeout {
		_, message = timedOut(spec)
	}
	op.repair.Outcome = outcomeOf(spec, e)
	op.mark(ctx, lifecycle.PhaseFailed, message)
	op.tries++ // the next rung's tasks are new ones
	return true, nil
}

// failsRung reports whether a failure of the current phase ends its rung.
func (op ladder) failsRung(e *schema.Error) bool {
	ours := e.Kind == schema.KindServiceUnavailable && e.Reason != lifecycle.ReasonTimeout || e.Kind == schema.KindInternal
	return op.spec().Climbs && !ours && !locked(e) && !slices.Contains([]string{lifecycle.ReasonStepUnknown, lifecycle.ReasonProviderUnknown,
		lifecycle.ReasonResultMissing, lifecycle.ReasonTaskCanceled}, e.Reason)
}

// outageEnded reports whether a repair, which an outage of the control plane parked, fails for a reason of
// its node now. The phase then runs again outside of the park, where such a failure climbs.
func (op ladder) outageEnded(ctx workflow.Context, parked string, failure error) bool {
	outages := []string{lifecycle.ReasonNodeAPIDown, lifecycle.ReasonVaultSealed, lifecycle.ReasonVaultUnreachable, lifecycle.ReasonClockSkew,
		string(schema.KindServiceUnavailable)}
	return !op.undoing && op.plan.Action == lifecycle.ActionRecover && slices.Contains(outages, parked) && op.failsRung(failureOf(failure)) &&
		workflow.GetVersion(ctx, changeClimbName, workflow.DefaultVersion, 1) > workflow.DefaultVersion
}

// changeClimbName is the change that made a repair climb after an outage.
const changeClimbName = "climb-after-outage"

// outcomeOf is the outcome of a rung whose phase failed.
func outcomeOf(spec lifecycle.PhaseSpec, e *schema.Error) string {
	switch {
	case e.Kind == schema.KindUnfit:
		return recovery.OutcomeNotCured
	case spec.Destructive && (e.Reason == lifecycle.ReasonTimeout || e.Reason == lifecycle.ReasonTaskLost):
		return recovery.OutcomeUnknown
	}
	return recovery.OutcomeFailed
}

// beginRung records that a rung of the repair begins, unless it has begun. It keeps the boot that the
// rung may end.
func (op ladder) beginRung(ctx workflow.Context) (activities.RepairFacts, error) {
	var facts activities.RepairFacts
	if err := fromRecord(ctx, "Read the node's boot", &facts, repairs.ReadRepair, op.in.NodeID, recovery.Fault{}); err != nil {
		return facts, err
	}
	rung := op.spec().Rung
	if op.repair.Attempt != nil && op.repair.Attempt.Rung == rung {
		return facts, nil
	}
	op.repair.Outcome = ""
	op.repair.Attempt = &recovery.Attempt{OperationID: op.in.OperationID, NodeID: op.in.NodeID, SKU: op.claim.SKU.Name, Rung: rung,
		Fault: op.in.Options.Recovery.Fault, StartedAt: now(ctx), BootBefore: facts.BootID}
	op.recordAttempt(ctx)
	return facts, nil
}

// endAttemptAt records the end of the current rung.
func (op ladder) endAttemptAt(ctx workflow.Context, outcome string) {
	a := op.repair.Attempt
	if a == nil {
		return
	}
	a.EndedAt, a.Outcome = now(ctx), outcome
	op.recordAttempt(ctx)
	op.repair.Attempt, op.repair.Done, op.repair.Outcome = nil, append(op.repair.Done, *a), ""
}

// recordAttempt stores the current rung, and takes the boot that it ends from the record. It waits for the database, as other records do.
func (op ladder) recordAttempt(ctx workflow.Context) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var before string // empty from a worker of an earlier version
	err := op.onRecord(free, "Record the rung "+string(op.repair.Attempt.Rung), &before, repairs.RecordAttempt, op.claim.Fence, *op.repair.Attempt)
	op.repair.Attempt.BootBefore = cmp.Or(before, op.repair.Attempt.BootBefore)
	noteRejected(ctx, op.state, err)
}

// verifyFault ends the repair if the fault has ended and the node passes its probe. It fails, which
// the plan ignores, if the node does not show that.
func verifyFault(ctx workflow.Context, op *operation) error {
	var facts activities.RepairFacts
	fault := op.in.Options.Recovery.Fault
	if err := fromRecord(ctx, "Read whether the fault is still reported", &facts, repairs.ReadRepair, op.in.NodeID, fault); err != nil {
		return err
	}
	if facts.Silent || !facts.Healed {
		return nil
	}
	if err := probeNode(ctx, op); err != nil {
		return err
	}
	op.repair.Ended = repairNotNeeded
	return nil
}

// approve parks the operation until a person approves the rung, which a retry does.
func approve(_ workflow.Context, op *operation) error {
	if op.status.Operation.Phases[op.phase].Attempt > 1 {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "%s an approval before the rung %s of the repair",
		lifecycle.ApprovalAsked(op.in.Options.Recovery), op.spec().Rung).
		WithReason(lifecycle.ReasonApproval)
}

// resetGPU resets the GPUs that have the fault.
func resetGPU(ctx workflow.Context, op *operation) error {
	if _, err := (ladder{op}).beginRung(ctx); err != nil {
		return err
	}
	params := task.ResetParams{GPUs: op.in.Options.Recovery.GPUs}
	_, err := onNode[task.ResetResult](ctx, op, task.GPUReset, params.Encode(), "Reset the GPUs")
	return err
}

// verifyRepair tests the node after a rung. The decision force accepts a failed test.
func verifyRepair(ctx workflow.Context, op *operation) error {
	rung := op.spec().Rung
	params := task.VerifyParams{Rung: rung, GPUs: op.claim.GPUsTotal}
	out, err := onNode[task.VerifyResult](ctx, op, task.NodeVerify, params.Encode(), "Test the node")
	if err != nil {
		return err
	}
	if a := op.repair.Attempt; a != nil {
		a.Tests = out.Tests
	}
	if !out.OK && !op.forced {
		return schema.NewError(schema.KindUnfit, "the node did not pass its tests after the rung %s: %s", rung, failedTests(out.Tests)).
			WithReason(lifecycle.ReasonNotCured)
	}
	op.repair.Ended = repairCured
	return nil
}

func failedTests(tests []recovery.Test) string {
	var failed []string
	for _, t := range tests {
		if t.Failed() {
			failed = append(failed, t.Name+": "+t.Detail)
		}
	}
	if len(failed) == 0 {
		return "no test names a cause"
	}
	return strings.Join(failed, "; ")
}

// replaceMachine ends the node's instance, whose machine is deleted, and begins the next one.
func replaceMachine(ctx workflow.Context, op *operation) error {
	var next lifecycle.Instance
	in := activities.ReplaceInput{Fence: op.claim.Fence, InstanceID: op.claim.Instance.InstanceID}
	if op.repair.Replaced {
		return nil
	}
	if err := op.onRecord(ctx, "End the instance of the old machine", &next, repairs.ReplaceInstance, in); err != nil {
		return err
	}
	op.claim.Instance, op.repair.Replaced = next, true
	op.tries++ // the new machine has run none of the tasks
	return nil
}

// restoreCordon uncordons a repaired node, unless it was cordoned before. The cordon of a quarantined
// node is that of its quarantine, which the repair ends. A new machine has no cordon.
func restoreCordon(ctx workflow.Context, op *operation) error {
	keeps := op.claim.Cordoned && !op.claim.LeftCordon
	switch {
	case op.claim.Prior == lifecycle.NodeQuarantined && !op.repair.Replaced:
		return uncordonNode(ctx, op)
	case op.repair.Replaced && keeps && op.claim.Prior != lifecycle.NodeQuarantined:
		return cordonNode(ctx, op)
	case op.repair.Replaced:
		return nil
	}
	return undoCordon(ctx, op)
}

// keepEvidence stores what the vendor of the hardware needs. A repair without another rung records the
// quarantine as its attempt.
func keepEvidence(ctx workflow.Context, op *operation) error {
	if len(op.repair.Done) == 0 {
		if _, err := (ladder{op}).beginRung(ctx); err != nil {
			return err
		}
		(ladder{op}).endAttemptAt(ctx, recovery.OutcomeNotCured)
	}
	in := activities.EvidenceInput{Fence: op.claim.Fence, Fault: op.in.Options.Recovery.Fault, Attempts: op.repair.Done}
	return withinBudget(ctx, op, "Store the evidence", repairs.KeepEvidence, in)
}

// undoRecover switches a machine on that the provider was asked to restart, and restores the cordon.
// A machine that the provider cannot switch on is left as it is. If the machine was deleted, its
// replacement is returned, and the node ends without a machine.
func undoRecover(ctx workflow.Context, op *operation) error {
	switch {
	case op.repair.Replaced:
		if err := returnMachine(ctx, op); err != nil {
			return err
		}
		op.unrecorded.Instance = lifecycle.InstanceTerminated
		return nil
	case op.repair.TornDown:
		if err := verifyMachine(ctx, op); err != nil || op.unrecorded.Instance == lifecycle.InstanceTerminated {
			return err
		}
	}
	if op.repair.Powered {
		err := op.call(ctx, callProvider, "Switch the machine on if it is off", machine.AwaitMachine, machineOf(op))
		if err != nil && (ctx.Err() != nil || kindOf(err).Info().Retry || kindOf(err) == schema.KindFenced) {
			return err
		}
	}
	return undoCordon(ctx, op)
}

// recovered adds to the record of a repair how it ended.
func (op ladder) recovered(f activities.Finish) activities.Finish {
	if op.repair.Replaced {
		f.Instance = lifecycle.InstanceRunning
	}
	last := recovery.RungQuarantine
	if n := len(op.repair.Done); n > 0 {
		last = op.repair.Done[n-1].Rung
	}
	switch op.repair.Ended {
	case repairCured:
		f.Outcome = "repaired by the rung " + string(last)
	case repairNotNeeded:
		f.Node, f.Outcome = op.claim.Prior, "not needed: the fault had ended"
	default:
		f.Node, f.Outcome = lifecycle.NodeQuarantined, fmt.Sprintf("not repaired after %s; the node stays quarantined", text.Count(len(op.repair.Done), "attempt"))
		if slices.ContainsFunc(op.status.Operation.Phases, func(p lifecycle.Phase) bool {
			return p.Name == lifecycle.PhaseEvidence && p.State == lifecycle.PhaseCompleted
		}) {
			f.Outcome += "; evidence: gpuaas node rma " + op.name()
		}
	}
	return f
}
