package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Records stores nodes and operations. Errors are *schema.Error:
// KindServiceUnavailable when the database cannot be reached (the caller
// retries), KindNotFound, KindFenced and the rejections of Claim.
type Records interface {
	// Claim assigns the node to an operation. In one transaction it checks that the
	// action may start in the node's state, allocates the next op_seq, stores the
	// operation with its document, enters the plan's Enter state and writes the
	// audit row. A second call with the same operation and run returns the same
	// claim, whatever the time.
	//
	// Temporal runs one workflow per ID at a time. So an open operation of another run
	// under the claiming run's workflow ID is over: the claim ends it as failed. If no
	// action can start in the node's state, the action starts in the state before that
	// operation, which is then Claim.Prior. A run that started before the other one is
	// rejected with KindFenced, reason newer_run.
	//
	// Rejections (KindNotFound, KindInvalidRequest, KindNodeInUse, KindClaimExpired,
	// KindFenced) write an audit row with result "refused" and change nothing else. A
	// claim after its StartBy, by the database's clock, is rejected with KindClaimExpired. A retire without drain is
	// rejected with KindNodeInUse while the node reports workloads. An operation id
	// that another run used is KindInvalidRequest, reason duplicate_operation. A
	// workflow ID that is not the node's is KindInvalidRequest, reason
	// foreign_workflow_id (lifecycle.CheckWorkflowID).
	//
	// An action that does not hold the node gets op_seq 0 and may run at the
	// same time as the operation that does. A reissue is rejected while that operation
	// drains or removes the node, abandoned or not.
	Claim(ctx context.Context, r ClaimRequest) (Claim, error)
	// Advance records progress under the fence. Repeating a call changes nothing.
	// A change of the instance, a park and a decision each write one audit row; the IDs
	// of a park and of a decision identify them among calls with other steps.
	// runID is the run that makes the call, here and in Finish, "" when it is not
	// known: a reset continues an operation under another run, which the operation
	// then names. With
	// op_seq 0 the fence covers the operation's own row and nothing of the node,
	// here and in Finish.
	//
	// Once the undo is recorded, only the undo continues: an advance of another phase, and
	// here the end as completed, is KindFenced, reason undo_began. The undo has removed what
	// those phases rely on. A decision to cancel is recorded, and the phase stays the undo.
	Advance(ctx context.Context, f Fence, runID string, a Advance) error
	// Finish ends the operation under the fence: node state, operation row, audit
	// row, and the operation's unfinished tasks become void. Repeating a call
	// changes nothing. Whatever the workflow received, an enrollment completes only if
	// the node polled (KindInvalidRequest, reason not_enrolled), and a removal only if
	// its ledger has no open entry or the teardown was forced (reason resources_open).
	Finish(ctx context.Context, f Fence, runID string, e Finish) error
	// Enrollment returns the progress of the node's enrollment in its current
	// incarnation. A claimed token stays claimed after its expiry, because the
	// claiming key may still request its certificate.
	Enrollment(ctx context.Context, nodeID string) (Enrollment, error)
	// Registration returns what the node's registration requires of its machine.
	Registration(ctx context.Context, nodeID string) (Registration, error)
	// HeartbeatAge returns the time since the node's last heartbeat by the clock that
	// stored it, negative when there was none. KindInvalidRequest, reason node_locked, while
	// the node's identity is locked: no heartbeat is accepted.
	HeartbeatAge(ctx context.Context, nodeID string) (time.Duration, error)
}

// Record has the activities that use the database. They run as local activities
// and, if the database is slow, as normal ones.
type Record struct {
	Records Records
	// OnEnd observes each operation that was rejected or that ended; ctx has the span of the
	// activity. A repeated activity may call it twice. nil observes nothing.
	OnEnd func(ctx context.Context, a lifecycle.Action, s lifecycle.OperationState, took time.Duration)
}

func (r *Record) ended(ctx context.Context, a lifecycle.Action, s lifecycle.OperationState, took time.Duration) {
	if r.OnEnd != nil {
		r.OnEnd(ctx, a, s, took)
	}
}

// ClaimNode claims the node for an operation (see Records.Claim) and computes the
// operation's plan, which does not change during the run. A second run returns the
// same claim.
func (r *Record) ClaimNode(ctx context.Context, req ClaimRequest) (Claim, error) {
	claim, err := r.claim(ctx, req)
	if err != nil && !schema.KindOf(err).Info().Retry {
		r.ended(ctx, req.Action, lifecycle.OperationRejected, 0)
	}
	return claim, Fail(err)
}

func (r *Record) claim(ctx context.Context, req ClaimRequest) (Claim, error) {
	plan, ok := lifecycle.PlanOf(req.Action, req.Options)
	if !ok || plan.Workflow == "" {
		return Claim{}, schema.NewError(schema.KindInvalidRequest, "%q is not an operation", req.Action).
			WithReason("not_an_operation")
	}
	if err := lifecycle.CheckRecovery(req.Options.Recovery); err != nil {
		return Claim{}, err
	}
	claim, err := r.Records.Claim(ctx, req)
	claim.Plan = plan.On(claim.Source()).ForGPUs(claim.GPUsTotal, req.Options)
	return claim, err
}

// RecordProgress records progress; see Records.Advance. A second run changes
// nothing.
func (r *Record) RecordProgress(ctx context.Context, f Fence, a Advance) error {
	return Fail(r.Records.Advance(ctx, f, activity.GetInfo(ctx).WorkflowExecution.RunID, a))
}

// FinishOperation ends an operation, whose document it needs; see Records.Finish. A
// second run changes nothing.
func (r *Record) FinishOperation(ctx context.Context, f Fence, e Finish) error {
	if err := r.Records.Finish(ctx, f, activity.GetInfo(ctx).WorkflowExecution.RunID, e); err != nil {
		return Fail(err)
	}
	op := e.Document.Operation
	r.ended(ctx, op.Action, e.Status, time.Since(*op.StartedAt))
	return nil
}

// ReadEnrollment reads the progress of the node's enrollment.
func (r *Record) ReadEnrollment(ctx context.Context, nodeID string) (Enrollment, error) {
	e, err := r.Records.Enrollment(ctx, nodeID)
	return e, Fail(err)
}

// ReadRegistration reads what the node's registration requires of its machine.
func (r *Record) ReadRegistration(ctx context.Context, nodeID string) (Registration, error) {
	reg, err := r.Records.Registration(ctx, nodeID)
	return reg, Fail(err)
}

// AgentFresh is how recent a heartbeat must be for the agent to count as
// connected: two missed ones are allowed.
const AgentFresh = 3 * wire.HeartbeatInterval

// CheckAgent fails with KindAgentSilent until the node's agent sent a heartbeat
// within AgentFresh. Temporal retries the activity, so waiting adds no events to
// the history.
func (r *Record) CheckAgent(ctx context.Context, nodeID string) error {
	age, err := r.Records.HeartbeatAge(ctx, nodeID)
	switch {
	case err != nil:
		return Fail(err)
	case age < 0:
		return Fail(schema.NewError(schema.KindAgentSilent, "the agent has never sent a heartbeat"))
	case age > AgentFresh:
		return Fail(schema.NewError(schema.KindAgentSilent, "the agent's last heartbeat was %s ago", age.Round(time.Second)))
	}
	return nil
}
