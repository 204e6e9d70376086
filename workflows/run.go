package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// operation is one running lifecycle action. Replay rebuilds all of it.
type operation struct {
	*state
	decisions
	inbox
	// refused is the claim's rejection.
	refused *schema.Error
	// tries counts how often node work was repeated with a new task.
	tries int
	// undoBegan is when the undo began. It is nil before, and in an undo that began under a
	// version that did not name tasks by it.
	undoBegan *time.Time
	forced    bool
	// adopted is set once the node's ledger has the operation's machine.
	adopted bool
	facts   inventory.Facts
	// repair is the progress of a recover.
	repair repair
	// taskUntil is when the newest task expires. returns counts how often a lost task
	// returned in the current phase without a decision.
	taskUntil time.Time
	returns   int
	// parks counts how often this run recorded a park. A workflow task that runs again
	// counts the same.
	parks int
	// unrecorded is progress that the next publish records; published is set once the
	// current attempt's phase is published.
	unrecorded activities.Advance
	published  bool
	// resumed is set until the first phase of this run begins, which the run before
	// parked.
	resumed bool
	// goalReached reports whether the current phase reached its goal while parked.
	// It is nil for a phase that only a decision can end.
	goalReached func(ctx workflow.Context) bool
	// leftUndone says why the undo was not done: the identity of its node is locked.
	leftUndone string
}

// state is the status of an operation and its position in the plan.
type state struct {
	in     lifecycle.OperationInput
	status lifecycle.OperationStatus
	claim  activities.Claim
	// plan comes with the claim and does not change during the run.
	plan lifecycle.Plan
	// answered is set when the claim succeeded or was rejected.
	answered bool
	// phase is the index of the current phase in the status. closed is set while no
	// decision is accepted: before and after undo, while the outcome is recorded,
	// and once the operation ended.
	phase   int
	undoing bool
	closed  bool
	// lastStep is the number of the newest write (Advance.Step). unwritten counts the
	// writes that still run in the background.
	lastStep  int64
	unwritten int
	// fence is the error of a write that is no longer allowed: the operation has ended,
	// or another one holds the node.
	fence error
	// machineSeen is what the provider said of a machine that does not run: see describeMachine.
	machineSeen string
	// failed is the newest failure of a phase.
	failed failed
}

// run is the skeleton of every lifecycle action: it claims the node, responds to the
// caller, runs the phases and records the outcome. A rejected claim and a canceled
// operation end the workflow normally. Only a defect fails it. before is set when the run
// continues a parked operation, which is claimed already.
func run(ctx workflow.Context, a lifecycle.Action, in lifecycle.OperationInput, before *Carried) (lifecycle.OperationStatus, error) {
	op := newOperation(ctx, in)
	if before != nil {
		before.restore(op)
	}
	if err := op.registerHandlers(ctx); err != nil {
		return op.status, err
	}
	if op.undoing {
		return op.runUndo(ctx)
	}
	if before == nil {
		op.claimNode(ctx, a)
	}
	switch {
	case op.refused != nil && op.canceledEarly(ctx):
		return op.close(ctx, lifecycle.OperationCanceled, "canceled before it claimed the node")
	case op.refused != nil:
		return op.close(ctx, lifecycle.OperationRejected, op.refused.Message)
	}
	err := op.runPhases(ctx)
	return op.end(ctx, err)
}

func newOperation(ctx workflow.Context, in lifecycle.OperationInput) *operation {
	info := workflow.GetInfo(ctx)
	started := info.WorkflowStartTime.UTC()
	s := &state{in: in, status: lifecycle.OperationStatus{
		Operation: lifecycle.Operation{
			OperationID: in.OperationID, WorkflowID: info.WorkflowExecution.ID, RunID: info.WorkflowExecution.RunID,
			Action: in.Action, Status: lifecycle.OperationAccepted, Actor: in.Actor, Reason: in.Reason, Options: in.Options.Requested(),
			CorrelationID: in.CorrelationID, StartedAt: &started, Phases: []lifecycle.Phase{},
		},
		Node: lifecycle.NodeRef{NodeID: in.NodeID, Host: in.Host},
	}}
	return &operation{state: s, decisions: decisions{state: s}, inbox: inbox{state: s, returned: map[string]bool{}}}
}

// claimNode claims the node and stores the plan that the claim computed. It stores a
// rejection for the response to the caller. The claim runs on a disconnected context,
// because a claim whose result is lost could not be undone.
func (op *operation) claimNode(ctx workflow.Context, a lifecycle.Action) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if op.in.Action != a {
		op.answered = true
		op.refused = schema.NewError(schema.KindInvalidRequest, "the workflow of %s cannot run %s", a, op.in.Action)
		return
	}
	err := op.onRecord(free, "Claim the node for "+string(a), &op.claim, record.ClaimNode, activities.ClaimRequest{
		OperationInput: op.in, WorkflowID: op.status.Operation.WorkflowID, Document: op.document(),
		// A run that was reset to its beginning repeats its claim. Its history, and so
		// its start, is that of the original run.
		RunID: workflow.GetInfo(ctx).OriginalRunID, RunStartedAt: workflow.GetInfo(ctx).WorkflowStartTime.UTC(),
	})
	op.answered = true
	if err != nil {
		op.refused = failureOf(err)
		return
	}
	op.plan = op.claim.Plan
	op.status.Operation.StartedAt = &op.claim.StartedAt
	op.status.Operation.Phases = op.plan.Statuses()
	op.status.Operation.Phases[0].StartedAt = &op.claim.StartedAt
	op.status.Operation.OpSeq = op.claim.Fence.OpSeq
	op.status.Node.Host, op.status.Node.State = op.claim.Host, op.claim.State
}

// runPhases runs every phase but the last one, which end records.
func (op *operation) runPhases(ctx workflow.Context) error {
	last := len(op.plan.Phases) - 1
	for ; op.phase < last; op.phase++ {
		if (ladder{op}).enterPhase(ctx) {
			continue
		}
		if err := op.runPhase(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// end records the outcome. It runs on a disconnected context, so that a canceled
// run still restores and records.
func (op *operation) end(ctx workflow.Context, err error) (lifecycle.OperationStatus, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	op.closed = true
	switch {
	case op.fence != nil:
		return op.fenced(free, op.fence)
	case errors.Is(err, errRenew):
		return op.status, continueAsNew(ctx, op)
	case err == nil:
		op.begin(free)
		return op.finish(free, lifecycle.PhaseCompleted, completed(op))
	case kindOf(err) == schema.KindFenced:
		return op.fenced(free, err)
	case errors.Is(err, errCanceled) || errors.Is(err, errNodeRemoved) || temporal.IsCanceledError(err):
		if ctx.Err() != nil && op.lastTaken().Decision != lifecycle.DecisionCancel {
			op.claim.Fence.Actor, op.claim.Fence.Via = lifecycle.ActorTemporal, lifecycle.ActorTemporal
		}
		return op.rollBack(free)
	}
	return op.status, err
}

// The outcomes of a run that may no longer write.
const (
	outcomeOver       = "the operation has already ended, through another run of it or gpuaas node rehydrate"
	outcomeSuperseded = "a newer operation holds the node"
)

// fenced ends a run that may no longer write, with the reason that the database gave. It
// undoes nothing, unless only the undo may continue: the run was reset to before it.
func (op *operation) fenced(ctx workflow.Context, cause error) (lifecycle.OperationStatus, error) {
	if failureOf(cause).Reason == lifecycle.ReasonUndoBegan {
		op.fence = nil
		return op.rollBack(ctx)
	}
	outcome := outcomeSuperseded
	switch e := failureOf(cause); e.Reason {
	case "":
	case lifecycle.ReasonOperationOver:
		outcome = outcomeOver
	default:
		outcome = e.Message
	}
	return op.close(ctx, lifecycle.OperationFailed, outcome)
}

// completed is the record of a plan that succeeded.
func completed(op *operation) activities.Finish {
	f := activities.Finish{
		Status: lifecycle.OperationCompleted, Node: op.plan.To, Instance: op.plan.Instance,
		DenyIdentity: op.plan.DenyIdentity, Outcome: op.plan.Outcome,
	}
	if f.Node == "" && op.plan.Enter != "" {
		f.Node = op.claim.Prior
	}
	if op.plan.Action == lifecycle.ActionRecover {
		return (ladder{op}).recovered(f)
	}
	for _, p := range op.status.Operation.Phases {
		switch {
		case p.Name == lifecycle.PhaseTeardown && p.State == lifecycle.PhaseForced:
			f.Outcome += "; its provider did not confirm the teardown"
		case p.State != lifecycle.PhaseSkipped:
		case p.Name == lifecycle.PhaseCordon:
			f.Outcome += "; the cordon was skipped"
		case p.Name == lifecycle.PhaseIdle:
			f.Outcome += "; its workloads were not checked"
		}
	}
	return f
}

// rollBack undoes the phases and restores the state at the start. It always
// records the outcome, unless another operation holds the node.
func (op *operation) rollBack(ctx workflow.Context) (lifecycle.OperationStatus, error) {
	op.unpark(ctx)
	op.mark(ctx, lifecycle.PhaseCanceled, "")
	noteUndo(ctx, op)
	(ladder{op}).endAttemptAt(ctx, recovery.OutcomeUnknown)
	if op.plan.Holds {
		err := voidTasks(ctx, op, "Void the node's open tasks")
		if kindOf(err) == schema.KindFenced {
			return op.fenced(ctx, err)
		}
	}
	if op.plan.Undo == nil {
		return op.rolledBack(ctx)
	}
	op.beginUndo()
	return op.runUndo(ctx)
}

// noteUndo notes when the undo begins. That is before the void: a run that is reset to after
// the void keeps the open task of its undo, and one that is reset to before it enqueues a
// new one.
func noteUndo(ctx workflow.Context, op *operation) {
	if op.plan.Undo != nil && workflow.GetVersion(ctx, changeUndoName, workflow.DefaultVersion, 1) > workflow.DefaultVersion {
		at := now(ctx)
		op.undoBegan = &at
	}
}

// changeUndoName is the change that named the tasks of an undo by its beginning.
const changeUndoName = "undo-task-name"

// rolledBack records the cancel.
func (op *operation) rolledBack(ctx workflow.Context) (lifecycle.OperationStatus, error) {
	if op.enrolled.Removed {
		op.status.Node.State = lifecycle.NodeRemoved
	}
	return op.finish(ctx, op.status.Operation.Phases[op.phase].State, canceled(op))
}

// canceled is the record of a cancel.
func canceled(op *operation) activities.Finish {
	f := activities.Finish{Status: lifecycle.OperationCanceled, VoidTokens: op.plan.CancelVoidsTokens, Instance: op.unrecorded.Instance}
	switch {
	case f.Instance != "" && f.Instance == op.plan.Instance: // too late: the operation reached its goal
		f.Node = op.plan.To
		f.Outcome = "canceled after the machine was deleted; the node can be provisioned again"
	case op.plan.Action == lifecycle.ActionRecover && f.Instance == lifecycle.InstanceTerminated:
		f.Node = lifecycle.NodeRegistered
		f.Outcome = "canceled after the machine was deleted; the node can be provisioned again"
	case op.plan.Action == lifecycle.ActionUpgradeAgent:
		f.Node = op.claim.Prior
		f.Outcome = fmt.Sprintf("ended; the node runs %s if its agent had already started it: gpuaas node show %s", op.in.Options.AgentVersion, op.name())
	case op.plan.Holds:
		f.Node = op.claim.Prior
		f.Outcome = "rolled back"
	case op.enrolled.Removed:
		f.Outcome = "the node was removed, which voided the reissued token"
	case op.enrolled.TokenClaimed:
		f.Outcome = "the reissued token is void, but the agent already claimed it; issue a new one: " +
			"gpuaas node reissue-enrollment " + op.name()
	default:
		f.Outcome = "the reissued token is void"
	}
	if op.leftUndone != "" {
		f.Outcome += "; the node was not uncordoned, because its identity is locked; after the lock: gpuaas node uncordon " + op.name()
	}
	if op.claim.Fence.Actor == lifecycle.ActorTemporal {
		f.Outcome = "canceled in Temporal: " + f.Outcome
	}
	return f
}

// finish records the outcome with the final status and closes the operation.
func (op *operation) finish(ctx workflow.Context, last lifecycle.PhaseState, f activities.Finish) (lifecycle.OperationStatus, error) {
	if err := op.awaitWritten(ctx); err != nil {
		return op.status, err
	}
	if op.fence != nil && f.Status == lifecycle.OperationCompleted {
		return op.fenced(ctx, op.fence)
	}
	at := now(ctx)
	f.Document = op.document()
	final := &f.Document.Operation
	final.Phases[op.phase].State, final.Phases[op.phase].EndedAt = last, &at
	final.End(f.Status, f.Outcome, at)
	if f.Node != "" {
		f.Document.Node.State = f.Node
	}
	err := op.onRecord(ctx, "Record the outcome", nil, record.FinishOperation, op.claim.Fence, f)
	switch {
	case err == nil:
		op.status = clone(*f.Document)
	case f.Status == lifecycle.OperationCompleted && kindOf(err) == schema.KindInvalidRequest:
		return rejected(ctx, op, failureOf(err))
	case kindOf(err) == schema.KindFenced:
		return op.fenced(ctx, err)
	default:
		return op.status, err
	}
	return op.close(ctx, f.Status, f.Outcome)
}

// rejected records the failure of an operation whose success the database rejects. It
// restores the state at the start, and undoes no phase: a person did not decide that.
func rejected(ctx workflow.Context, op *operation, cause *schema.Error) (lifecycle.OperationStatus, error) {
	f := canceled(op)
	f.Status, f.Outcome = lifecycle.OperationFailed, "the database rejects the success: "+cause.Message
	return op.finish(ctx, lifecycle.PhaseFailed, f)
}

// close ends the workflow after all pending updates have returned and all writes are
// stored. A canceled operation closes as Canceled, with its status in the details.
func (op *operation) close(ctx workflow.Context, s lifecycle.OperationState, outcome string) (lifecycle.OperationStatus, error) {
	op.closed = true
	op.status.Operation.End(s, outcome, now(ctx))
	op.show(ctx)
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if err := workflow.Await(free, func() bool { return op.unwritten == 0 && workflow.AllHandlersFinished(free) }); err != nil {
		return op.status, err
	}
	if s == lifecycle.OperationCanceled {
		return op.status, temporal.NewCanceledError(op.status)
	}
	return op.status, nil
}
