package workflows

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// operation is the state of one running lifecycle action. All of it is rebuilt
// by replay.
type operation struct {
	in     lifecycle.OperationInput
	status lifecycle.OperationStatus
	claim  activities.Claim
	// answered is set once the claim decided; refused holds its refusal.
	answered bool
	refused  *schema.Error
	// over is set when no decision can be taken any more.
	over bool
	// phase is the index of the running phase; interrupt ends its work.
	phase     int
	interrupt workflow.CancelFunc
	// decision waits to be taken up by the running phase.
	decision *lifecycle.ResolveRequest
	// try counts the rounds of node work: each operator's retry gives the node
	// a new task instead of the old one.
	try    int
	forced bool
	// asked is the step that the node was given last, back the steps whose lost
	// task came back.
	asked string
	back  map[string]bool
	// advances counts the progress written to the database.
	advances int64
	// cordoned is set when this operation cordoned the node, so that an undo
	// lifts just that cordon.
	cordoned bool
	facts    inventory.Facts
	probe    inventory.ProbeReport
	enrolled activities.Enrollment
	// healed reports whether the running phase reached its goal while parked;
	// nil for a phase that nothing but a decision moves.
	healed func(ctx workflow.Context) bool
}

// step is a phase's work. It returns nil when the phase's goal is reached, and
// otherwise why not; a retryable wait belongs into an activity's policy.
type step func(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error

// action is what distinguishes one lifecycle action from another.
type action struct {
	// steps does the work of each phase of lifecycle.Phases, by name. The last
	// phase has none: it is the record that finish writes.
	steps map[string]step
	// decisions lists, by phase, what an operator may decide beyond retry,
	// extend and cancel.
	decisions map[string][]lifecycle.Decision
	// undo takes back what the phases did, on a cancel. nil means nothing.
	undo step
	// finish says what the last phase records.
	finish func(op *operation) activities.Finish
}

// run is the skeleton of every lifecycle action: claim the node and answer the
// caller, then the phases, then the record. A refused claim and a cancelled
// operation end here too; only a bug ends the workflow as failed.
func run(ctx workflow.Context, in lifecycle.OperationInput, a action) (lifecycle.OperationStatus, error) {
	op := newOperation(ctx, in)
	if err := op.handle(ctx, a); err != nil {
		return op.status, err
	}
	op.take(ctx)
	if op.refused != nil {
		return op.close(ctx, lifecycle.OperationRejected, op.refused.Message)
	}
	err := op.runPhases(ctx, a)
	return op.end(ctx, a, err)
}

func newOperation(ctx workflow.Context, in lifecycle.OperationInput) *operation {
	info := workflow.GetInfo(ctx)
	started := info.WorkflowStartTime.UTC()
	op := &operation{in: in, back: map[string]bool{}}
	op.status = lifecycle.OperationStatus{
		Operation: lifecycle.Operation{
			OperationID: in.OperationID, WorkflowID: info.WorkflowExecution.ID, RunID: info.WorkflowExecution.RunID,
			Action: in.Action, Status: lifecycle.OperationAccepted, Actor: in.Actor, Reason: in.Reason,
			CorrelationID: in.CorrelationID, StartedAt: &started,
		},
		Node: lifecycle.NodeRef{NodeID: in.NodeID, Host: in.Host},
	}
	for _, spec := range lifecycle.Phases(in.Action, in.Options) {
		op.status.Operation.Phases = append(op.status.Operation.Phases,
			lifecycle.Phase{Name: spec.Name, Title: spec.Title, State: lifecycle.PhasePending})
	}
	return op
}

// take claims the node. A refusal is kept for the caller's answer. It runs on a context
// of its own: a claim whose answer nobody read could not be undone.
func (op *operation) take(ctx workflow.Context) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	err := onRecord(free, "Claim the node for "+string(op.in.Action), record.ClaimNode, activities.ClaimRequest{
		OperationID: op.in.OperationID, NodeID: op.in.NodeID, Action: op.in.Action,
		// A run that was reset to its beginning claims again what it has.
		WorkflowID: op.status.Operation.WorkflowID, RunID: workflow.GetInfo(ctx).OriginalRunID,
		Actor: op.in.Actor, Reason: op.in.Reason, CorrelationID: op.in.CorrelationID, Options: op.in.Options,
	}, &op.claim)
	op.answered = true
	if err != nil {
		op.refused = failureOf(err)
		return
	}
	op.status.Operation.OpSeq = op.claim.Fence.OpSeq
	op.status.Node.Host, op.status.Node.State = op.claim.Host, op.claim.State
}

// runPhases runs every phase but the last, which end records.
func (op *operation) runPhases(ctx workflow.Context, a action) error {
	specs := lifecycle.Phases(op.in.Action, op.in.Options)
	for i, spec := range specs[:len(specs)-1] {
		op.phase = i
		if err := op.runPhase(ctx, spec, a.steps[spec.Name], a.decisions[spec.Name]); err != nil {
			return err
		}
	}
	op.phase = len(specs) - 1
	return ctx.Err()
}

// end writes what became of the operation. It runs on a context of its own, so
// that a cancelled run still restores and records.
func (op *operation) end(ctx workflow.Context, a action, err error) (lifecycle.OperationStatus, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	switch {
	case err == nil:
		return op.complete(free, a)
	case kindOf(err) == schema.KindFenced:
		return op.close(free, lifecycle.OperationFailed, "a newer operation owns the node")
	case errors.Is(err, errCancelled) || errors.Is(err, errNodeRemoved) || temporal.IsCanceledError(err):
		return op.rollBack(free, a)
	}
	return op.status, err
}

func (op *operation) complete(ctx workflow.Context, a action) (lifecycle.OperationStatus, error) {
	f := a.finish(op)
	op.begin(ctx, lifecycle.Phases(op.in.Action, op.in.Options)[op.phase])
	if err := op.finish(ctx, f); err != nil {
		if kindOf(err) == schema.KindFenced {
			return op.close(ctx, lifecycle.OperationFailed, "a newer operation owns the node")
		}
		return op.status, err
	}
	op.mark(ctx, lifecycle.PhaseCompleted, "")
	return op.close(ctx, f.Status, f.Outcome)
}

// rollBack undoes the phases and restores the state at entry.
func (op *operation) rollBack(ctx workflow.Context, a action) (lifecycle.OperationStatus, error) {
	op.mark(ctx, lifecycle.PhaseCanceled, "cancelled")
	if op.holds() {
		tryRecord(ctx, "Void the node's open tasks", node.VoidTasks, op.claim.Fence)
	}
	if a.undo != nil {
		if err := op.undo(ctx, a.undo); err != nil {
			return op.status, err
		}
	}
	f := op.cancelled()
	if op.enrolled.Removed {
		op.status.Node.State = lifecycle.NodeRemoved
	}
	if err := op.finish(ctx, f); err != nil && kindOf(err) != schema.KindFenced {
		return op.status, err
	}
	return op.close(ctx, lifecycle.OperationCanceled, f.Outcome)
}

func (op *operation) finish(ctx workflow.Context, f activities.Finish) error {
	err := onRecord(ctx, "Record the outcome", record.FinishOperation,
		activities.FinishInput{Fence: op.claim.Fence, Finish: f, Action: op.in.Action, StartedAt: *op.status.Operation.StartedAt}, nil)
	if err == nil && f.Node != "" {
		op.status.Node.State = f.Node
	}
	return err
}

// close ends the workflow: callers that still wait get their answers first. A
// cancelled operation closes as Canceled and carries its state in the details.
func (op *operation) close(ctx workflow.Context, s lifecycle.OperationState, outcome string) (lifecycle.OperationStatus, error) {
	now := workflow.Now(ctx).UTC()
	op.over = true
	op.status.Operation.Status, op.status.Operation.Outcome, op.status.Operation.EndedAt = s, outcome, &now
	op.status.Operation.Stuck, op.status.Operation.DeadlineAt = nil, nil
	op.show(ctx)
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if err := workflow.Await(free, func() bool { return workflow.AllHandlersFinished(free) }); err != nil {
		return op.status, err
	}
	if s == lifecycle.OperationCanceled {
		return op.status, temporal.NewCanceledError(op.status)
	}
	return op.status, nil
}

// deadline returns the end of a phase that starts now.
func deadline(ctx workflow.Context, budget time.Duration) *time.Time {
	t := workflow.Now(ctx).Add(budget).UTC()
	return &t
}
