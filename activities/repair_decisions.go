package activities

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
)

// RepairDecisions stores the decisions of health recovery and the budgets of repairs. Errors are
// *schema.Error.
type RepairDecisions interface {
	// Round reads the newest policy and the fleet, calls decide, and stores the result: the
	// decisions that changed, the phases and the breaker. For each repair that nothing stops it
	// reserves the budget and the first attempt. All of that is one transaction, which excludes
	// other rounds. Nothing is stored if decide returns an error, and nothing is decided while a
	// restore mode is on.
	Round(ctx context.Context, decide DecideFunc) (RepairRound, error)
	// Started records that the operation of a reservation was accepted. A second call changes
	// nothing.
	Started(ctx context.Context, operationID string) error
	// Refused releases the reservation of an operation that was not accepted, with a decision of its
	// node that says why. Nothing changes once the operation has claimed the node.
	Refused(ctx context.Context, operationID, why string) error
}

// DecideFunc decides about a fleet with a stored policy, and returns the mode of the policy.
type DecideFunc func(record.Policy, recovery.Fleet) (recovery.Result, recovery.Mode, error)

// RepairRound is the result of RepairDecisions.Round.
type RepairRound struct {
	// Restoring is set if nothing was decided because a restore mode is on.
	Restoring bool
	// Nodes is the number of nodes that were decided about, and Decisions are the decisions that changed.
	Nodes     int
	Decisions []record.Decision
	Incidents []recovery.Incident
	Breaker   recovery.BreakerState
	// Starts are the operations to start: those of this round, and earlier ones whose start is not
	// recorded.
	Starts []lifecycle.OperationInput
}

// RepairRounds has the activity that decides about nodes with a fault and starts their repairs.
type RepairRounds struct {
	Decisions RepairDecisions
	Starter   Starter
	// Decide decides about a fleet. Defaults to recovery.Decide with the stored policy.
	Decide DecideFunc
	// OnRound observes each round. nil observes nothing.
	OnRound func(RepairRound)
}

// RepairSummary is the result of one round.
type RepairSummary struct {
	// Nodes is the number of nodes that were decided about.
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
	// Restoring is set if nothing was decided because a restore mode is on.
	Restoring bool `json:"restoring,omitempty"`
}

// Changed reports whether the round stored a decision or started an operation.
func (s RepairSummary) Changed() bool { return s.Decisions+len(s.Started)+len(s.Refused) > 0 }

// DecideRepairs decides once about all nodes that have a fault, and starts the repairs that nothing stops.
// The decisions and the reservations are stored before an operation is started, and the ID of an
// operation follows from its decision: after a crash, the next attempt or round completes the
// start. An operation that is rejected releases its reservation. If a start fails for another
// reason, DecideRepairs starts the others and returns the error at the end; a later round tries it
// again until the operation can no longer claim its node.
func (r *RepairRounds) DecideRepairs(ctx context.Context) (RepairSummary, error) {
	until := time.Now().Add(lifecycle.RoundTry / 2) // the next round starts the others
	decide := r.Decide
	if decide == nil {
		decide = decideStored
	}
	round, err := r.Decisions.Round(ctx, decide)
	if err != nil {
		return RepairSummary{}, Fail(err)
	}
	if r.OnRound != nil {
		r.OnRound(round)
	}
	s := RepairSummary{Nodes: round.Nodes, Decisions: len(round.Decisions), Incidents: len(round.Incidents),
		BreakerOpen: !round.Breaker.OpenSince.IsZero(), Restoring: round.Restoring}
	s.Started, s.Refused, err = starts{r.Starter, "the repair", r.Decisions.Started, func(ctx context.Context, in lifecycle.OperationInput, why string) error {
		return r.Decisions.Refused(ctx, in.OperationID, why)
	}}.all(ctx, round.Starts, until)
	if err != nil {
		return RepairSummary{}, err
	}
	return s, nil
}

// decideStored decides with a stored policy, the default one if none is stored.
func decideStored(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
	policy, err := p.Decode()
	if err != nil {
		return recovery.Result{}, "", err
	}
	return recovery.Decide(policy, f), policy.Mode, nil
}
