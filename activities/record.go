package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Record holds the activities on the database. They run as local activities
// and, when the database is slow, as normal ones: same functions.
type Record struct {
	Records Records
	// Ended is told of each operation that was refused or ended; a repeated
	// call may tell it twice. Defaults to nothing.
	Ended func(a lifecycle.Action, s lifecycle.OperationState, took time.Duration)
}

func (r *Record) ended(a lifecycle.Action, s lifecycle.OperationState, took time.Duration) {
	if r.Ended != nil {
		r.Ended(a, s, took)
	}
}

// ClaimNode takes the node for an operation; see Records.Claim. A second run
// answers the same claim.
func (r *Record) ClaimNode(ctx context.Context, req ClaimRequest) (Claim, error) {
	claim, err := r.Records.Claim(ctx, req)
	if err != nil && !schema.KindOf(err).Info().Retry {
		r.ended(req.Action, lifecycle.OperationRejected, 0)
	}
	return claim, fail(err)
}

// AdvanceInput is the input of RecordProgress.
type AdvanceInput struct {
	Fence   Fence   `json:"fence"`
	Advance Advance `json:"advance"`
}

// RecordProgress records progress; see Records.Advance. A second run changes nothing.
func (r *Record) RecordProgress(ctx context.Context, in AdvanceInput) error {
	in.Advance.RunID = activity.GetInfo(ctx).WorkflowExecution.RunID
	return fail(r.Records.Advance(ctx, in.Fence, in.Advance))
}

// FinishInput is the input of FinishOperation.
type FinishInput struct {
	Fence  Fence  `json:"fence"`
	Finish Finish `json:"finish"`
	// Action and StartedAt are for the metrics.
	Action    lifecycle.Action `json:"action"`
	StartedAt time.Time        `json:"started_at"`
}

// FinishOperation ends an operation; see Records.Finish. A second run changes nothing.
func (r *Record) FinishOperation(ctx context.Context, in FinishInput) error {
	in.Finish.RunID = activity.GetInfo(ctx).WorkflowExecution.RunID
	if err := r.Records.Finish(ctx, in.Fence, in.Finish); err != nil {
		return fail(err)
	}
	r.ended(in.Action, in.Finish.Status, time.Since(in.StartedAt))
	return nil
}

// ReadEnrollment reads how far the node's enrolment has come.
func (r *Record) ReadEnrollment(ctx context.Context, nodeID string) (Enrollment, error) {
	e, err := r.Records.Enrollment(ctx, nodeID)
	return e, fail(err)
}

// agentFresh is how recent a heartbeat must be for the agent to count as
// present: two missed ones are allowed.
const agentFresh = 3 * wire.HeartbeatInterval

// CheckAgent fails with KindAgentSilent until the node's agent was heard
// within three heartbeats. Its retries are the wait, so waiting adds nothing to
// the history.
func (r *Record) CheckAgent(ctx context.Context, nodeID string) error {
	last, err := r.Records.LastHeartbeat(ctx, nodeID)
	if err != nil {
		return fail(err)
	}
	if last.IsZero() {
		return fail(schema.Errorf(schema.KindAgentSilent, "the agent has never been heard"))
	}
	if age := time.Since(last); age > agentFresh {
		return fail(schema.Errorf(schema.KindAgentSilent, "the agent was last heard %s ago", age.Round(time.Second)))
	}
	return nil
}
