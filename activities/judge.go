package activities

import (
	"cmp"
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
)

// Repairs stores the decisions of health recovery and the budgets of repairs. Errors are
// *schema.Error.
type Repairs interface {
	// Round reads the newest policy and the fleet, calls judge, and stores the verdict: the
	// decisions that changed, the phases and the breaker. For each repair that nothing stops it
	// reserves the budget and the first attempt. All of that is one transaction, which excludes
	// other rounds. Nothing is stored if judge returns an error, and nothing is judged while a
	// restore mode is on.
	Round(ctx context.Context, judge JudgeFunc) (JudgedRound, error)
	// Started records that the operation of a reservation was accepted. A second call changes
	// nothing.
	Started(ctx context.Context, operationID string) error
	// Refused releases the reservation of an operation that was not accepted, with a decision of its
	// node that says why. Nothing changes once the operation has claimed the node.
	Refused(ctx context.Context, operationID, why string) error
}

// JudgeFunc judges a fleet with a stored policy.
type JudgeFunc func(record.Policy, recovery.Fleet) (recovery.Verdict, recovery.Mode, error)

// JudgedRound is the result of Repairs.Round.
type JudgedRound struct {
	// Restoring is set if nothing was judged because a restore mode is on.
	Restoring bool
	// Nodes is the number of nodes that were judged, and Decisions are the decisions that changed.
	Nodes     int
	Decisions []record.Decision
	Incidents []recovery.Incident
	Breaker   recovery.BreakerState
	// Starts are the operations to start: those of this round, and earlier ones whose start is not
	// recorded.
	Starts []lifecycle.OperationInput
}

// Starter starts operations. A second call with the same operation ID attaches to the first one's
// run.
type Starter interface {
	Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error)
}

// Judge has the activity that judges the health of nodes and starts their repairs.
type Judge struct {
	Repairs Repairs
	Starter Starter
	// Judge judges a fleet. Defaults to recovery.Judge with the stored policy.
	Judge JudgeFunc
	// Budget is how long a round starts repairs; 0 means half of lifecycle.RoundTry. The next round
	// starts the others.
	Budget time.Duration
	// OnRound observes each round. nil observes nothing.
	OnRound func(JudgedRound)
}

// JudgeSummary is the result of one round.
type JudgeSummary struct {
	// Nodes is the number of nodes that were judged.
	Nodes int `json:"nodes,omitempty"`
	// Decisions is the number of decisions that changed, and Started and Refused are the operations
	// that were accepted and rejected.
	Decisions int      `json:"decisions,omitempty"`
	Started   []string `json:"started,omitempty"`
	Refused   []string `json:"refused,omitempty"`
	// Incidents is the number of faults of many nodes at once.
	Incidents int `json:"incidents,omitempty"`
	// BreakerOpen is set while the breaker stops repairs.
	BreakerOpen bool `json:"breaker_open,omitempty"`
	// Restoring is set if nothing was judged because a restore mode is on.
	Restoring bool `json:"restoring,omitempty"`
}

// JudgeHealth judges all nodes that have a fault once, and starts the repairs that nothing stops.
// The decisions and the reservations are stored before an operation is started, and the ID of an
// operation follows from its decision: after a crash, the next attempt or round completes the
// start. An operation that is rejected releases its reservation. If a start fails for another
// reason, JudgeHealth starts the others and returns the error at the end; a later round tries it
// again until the operation can no longer claim its node.
func (j *Judge) JudgeHealth(ctx context.Context) (JudgeSummary, error) {
	until := time.Now().Add(cmp.Or(j.Budget, lifecycle.RoundTry/2))
	judge := j.Judge
	if judge == nil {
		return JudgeSummary{}, nil // TODO
	}
	round, err := j.Repairs.Round(ctx, judge)
	if err != nil {
		return JudgeSummary{}, Fail(err)
	}
	if j.OnRound != nil {
		j.OnRound(round)
	}
	s := JudgeSummary{Nodes: round.Nodes, Decisions: len(round.Decisions), Incidents: len(round.Incidents),
		BreakerOpen: !round.Breaker.OpenSince.IsZero(), Restoring: round.Restoring}
	var failed error
	for _, in := range round.Starts {
		if ctx.Err() != nil || time.Now().After(until) {
			break
		}
		failed = cmp.Or(failed, j.start(ctx, in, &s))
		activity.RecordHeartbeat(ctx)
	}
	if failed != nil {
		// The decisions are stored. A retry would hide the failed start.
		return JudgeSummary{}, Failure(schema.AsError(failed), true)
	}
	return s, Fail(ctx.Err())
}

// start starts a repair and records the answer.
func (j *Judge) start(ctx context.Context, in lifecycle.OperationInput, s *JudgeSummary) error {
	_, err := j.Starter.Submit(ctx, in)
	e := schema.AsError(err)
	switch {
	case err == nil:
		s.Started = append(s.Started, in.OperationID)
		return j.Repairs.Started(ctx, in.OperationID)
	case e.Kind.Info().Retry || ctx.Err() != nil:
		return schema.NewError(e.Kind, "starting the repair of node %s: %s", in.Host, e.Message).WithReason(e.Reason).WithNext(e.Next)
	}
	s.Refused = append(s.Refused, in.OperationID)
	return j.Repairs.Refused(ctx, in.OperationID, e.Message)
}
