package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Recovery stores the policy, the decisions and the budgets of health recovery. It implements
// activities.RepairDecisions and adminapi.Recovery.
type Recovery struct{ db *db }

// maxWhy bounds the sentence of a decision, in characters.
const maxWhy = 500

// Round implements activities.RepairDecisions.
func (s *Recovery) Round(ctx context.Context, decide activities.DecideFunc) (activities.RepairRound, error) {
	return write(ctx, s.db, "deciding about nodes with a fault", func(ctx context.Context, tx *tx) (activities.RepairRound, error) {
		before, err := tx.LockBreaker(ctx)
		if err != nil {
			return activities.RepairRound{}, err
		}
		if on, err := tx.restoring(ctx); err != nil || on {
			return activities.RepairRound{Restoring: on, Breaker: before.Breaker}, cmp.Or(err, withdrawStarts(ctx, tx))
		}
		r := deciding{tx: tx, ledger: ledger{tx.Queries}}
		if err := r.read(ctx, before); err != nil {
			return activities.RepairRound{}, err
		}
		result, mode, err := decide(r.policy, r.fleet)
		if err != nil {
			return activities.RepairRound{}, err
		}
		r.mode = mode
		slices.SortFunc(result.Decisions, func(a, b recovery.Decision) int { return cmp.Compare(a.NodeID, b.NodeID) }) // one order of locks
		for _, d := range result.Decisions {
			if err := r.store(ctx, d); err != nil {
				return activities.RepairRound{}, err
			}
		}
		if err := tx.SetBreaker(ctx, result.Breaker, append([]recovery.Incident{}, result.Incidents...)); err != nil {
			return activities.RepairRound{}, err
		}
		starts, err := r.ledger.toStart(ctx)
		return activities.RepairRound{Nodes: len(r.fleet.Nodes), Decisions: r.changed, Incidents: result.Incidents, Breaker: result.Breaker, Starts: starts}, err
	})
}

// deciding is one round.
type deciding struct {
	tx      *tx
	ledger  ledger
	policy  record.Policy
	mode    recovery.Mode
	fleet   recovery.Fleet
	nodes   map[string]sqlc.NodesToDecideRow // by ID
	last    map[string]sqlc.LastDecisionsRow
	busy    map[string]string // the operation of the reservation that counts, by node
	changed []record.Decision
}

// read ends what no operation continues, and reads the policy and the fleet.
func (r *deciding) read(ctx context.Context, before sqlc.LockBreakerRow) (err error) {
	if r.policy, err = newestPolicy(ctx, r.tx.Queries); err != nil {
		return err
	}
	if r.policy.Mode != recovery.ModeArmed {
		if err := withdrawStarts(ctx, r.tx); err != nil {
			return err
		}
	}
	if err := r.ledger.releaseEnded(ctx); err != nil {
		return err
	}
	if err := r.tx.EndAttempts(ctx, claimFor.Seconds()); err != nil {
		return err
	}
	if err := r.tx.DropRemoved(ctx); err != nil {
		return err
	}
	last, err := r.tx.LastDecisions(ctx)
	if err != nil {
		return err
	}
	r.last, r.nodes, r.busy = map[string]sqlc.LastDecisionsRow{}, map[string]sqlc.NodesToDecideRow{}, map[string]string{}
	for _, d := range last {
		r.last[d.NodeID] = d
	}
	used, err := r.ledger.inUse(ctx)
	if err != nil {
		return err
	}
	for _, u := range used {
		r.busy[u.nodeID] = u.operationID
	}
	r.fleet = recovery.Fleet{At: before.Now.UTC(), Breaker: before.Breaker, Incidents: before.Incidents}
	if r.fleet.Sizes, err = r.ledger.sizes(ctx, used); err != nil {
		return err
	}
	return r.readNodes(ctx)
}

// withdrawStarts ends the reservations that no operation uses yet: a policy that is not armed starts no repair, and
// one of a restored dump may have run in the lost time.
func withdrawStarts(ctx context.Context, tx *tx) error {
	withdrawn, err := ledger{tx.Queries}.withdrawAll(ctx)
	for _, id := range withdrawn {
		if err := tx.DeleteAttempts(ctx, id); err != nil {
			return err
		}
	}
	return err
}

// admitRepair rejects the claim of a repair that health recovery decided, if that was withdrawn or an operator
// took the node since.
func admitRepair(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow) error {
	if r.Action != lifecycle.ActionRecover || r.Via != viaRecovery {
		return nil
	}
	reserved, err := ledger{tx.Queries}.claim(ctx, r.OperationID)
	if err != nil {
		return err
	}
	policy, err := newestPolicy(ctx, tx.Queries)
	if err != nil {
		return err
	}
	var why string
	switch {
	case policy.Mode != recovery.ModeArmed:
		why = "the policy is not armed"
	case !reserved:
		why = "its reservation has ended"
	case n.State != lifecycle.NodeActive && n.State != lifecycle.NodeOffline:
		why = "the node is " + string(n.State)
	case n.Cordoned:
		why = "the node is cordoned"
	case n.IdentityLockedAt != nil:
		why = "the identity of the node is locked"
	default:
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "the repair that health recovery decided does not start: %s", why).
		WithReason("repair_withdrawn").WithNext("gpuaas recovery decisions --node " + n.Host)
}

// store stores a decision if it differs from the node's previous one, and reserves what it starts.
func (r *deciding) store(ctx context.Context, d recovery.Decision) error {
	n, known := r.nodes[d.NodeID]
	if !known {
		return schema.NewError(schema.KindInternal, "there is a decision about node %s, which is no node of the round", d.NodeID)
	}
	last, had := r.last[d.NodeID]
	starts := d.Brake == "" && d.Rung != "" && r.mode == recovery.ModeArmed
	if starts && r.busy[d.NodeID] != "" { // one repair of a node at a time, whatever the decision is
		starts = false
	}
	d.Why = text.Line(d.Why, maxWhy)
	healthy := d.Phase == health.PhaseHealthy || d.Phase == health.PhaseUnknown && d.Rung == ""
	if !had && healthy && !starts {
		return nil
	}
	if !starts && had && sameCourse(last, d, r.mode) && (sameFault(last.Fault, d.Fault) || r.fleet.At.Sub(last.DecidedAt) < faultEvery) {
		return r.tx.SetState(ctx, sqlc.SetStateParams{NodeID: d.NodeID, DecisionID: last.DecisionID, Phase: last.Phase, Why: d.Why})
	}
	return r.add(ctx, n, d, starts)
}

// faultEvery is how often a decision is stored that only names another fault of the node: the node may report
// another reason each time.
const faultEvery = 5 * time.Minute

// sameCourse reports whether the stored decision leads to the same, whatever the fault is.
func sameCourse(last sqlc.LastDecisionsRow, d recovery.Decision, mode recovery.Mode) bool {
	return last.Phase == d.Phase.String() && last.Rung == d.Rung && last.Brake == d.Brake && last.Mode == mode
}

// sameFault reports whether a fault is the same, apart from its figures.
func sameFault(a, b recovery.Fault) bool {
	return a.Checker == b.Checker && a.Component == b.Component && a.Reason == b.Reason && a.Code == b.Code
}

// add stores a decision with the node's state and, if it starts a repair, its reservation.
func (r *deciding) add(ctx context.Context, n sqlc.NodesToDecideRow, d recovery.Decision, starts bool) error {
	row := record.Decision{DecisionID: schema.NewID(), At: r.fleet.At, NodeID: n.NodeID, Host: n.Host, SKU: n.SKU, Region: n.RegionCode, Rack: n.Rack,
		PolicyVersion: r.policy.Version, Mode: r.mode, Phase: d.Phase, Fault: d.Fault, Rung: d.Rung, Brake: d.Brake, Why: d.Why}
	if starts {
		row.OperationID = lifecycle.OperationID(n.NodeID, lifecycle.ActionRecover, systemActor, row.DecisionID)
	}
	if err := addDecision(ctx, r.tx, row); err != nil {
		return err
	}
	r.changed = append(r.changed, row)
	if err := recordSignal(ctx, r.tx, signalOf(row)); err != nil {
		return err
	}
	state := sqlc.SetStateParams{NodeID: n.NodeID, DecisionID: row.DecisionID, Phase: d.Phase.String(), Why: d.Why}
	if d.Phase == health.PhaseHealthy {
		return r.tx.DropState(ctx, n.NodeID)
	}
	if err := r.tx.SetState(ctx, state); err != nil || !starts {
		return err
	}
	return r.reserve(ctx, n, d, row)
}

// reserve reserves the budget of a repair and its first attempt.
func (r *deciding) reserve(ctx context.Context, n sqlc.NodesToDecideRow, d recovery.Decision, row record.Decision) error {
	d.Request.DecisionID = row.DecisionID
	in := lifecycle.OperationInput{OperationID: row.OperationID, NodeID: n.NodeID, Action: lifecycle.ActionRecover, Actor: systemActor, Via: viaRecovery, Reason: d.Why,
		CorrelationID: row.DecisionID, Host: n.Host, Provider: n.Provider, Region: n.RegionCode, StartWithinSeconds: int64(lifecycle.StartWithin / time.Second),
		Options: lifecycle.Options{Recovery: d.Request}}
	r.busy[n.NodeID] = row.OperationID
	if err := r.ledger.reserve(ctx, reservation{row.OperationID, n.NodeID, n.SKU, n.Rack, n.RegionCode}, row.DecisionID, in); err != nil {
		return err
	}
	return r.tx.UpsertAttempt(ctx, sqlc.UpsertAttemptParams{OperationID: row.OperationID, Rung: d.Rung, NodeID: n.NodeID, SKU: n.SKU, Fault: d.Fault,
		StartedAt: r.fleet.At, Tests: []recovery.Test{}})
}

// signalOf returns the signal of a decision. Its reason is the brake, or else the rung that starts.
func signalOf(d record.Decision) health.Signal {
	s := health.Signal{SignalID: d.DecisionID, Type: health.SignalRecovery, Source: health.SourceRecovery, NodeID: d.NodeID, Component: d.Fault.Component,
		Reason: cmp.Or(string(d.Brake), string(d.Rung)), Code: d.Fault.Code, Repair: d.Fault.Repair, Detail: d.Why}
	if s.Status = health.Unhealthy; d.Phase == health.PhaseHealthy {
		s.Status, s.Repair = health.Healthy, ""
	}
	return s
}

// viaRecovery is the interface of the requests of repairs.
const viaRecovery = "recovery"

func addDecision(ctx context.Context, tx *tx, d record.Decision) error {
	p := sqlc.AddDecisionParams{DecisionID: d.DecisionID, NodeID: d.NodeID, PolicyVersion: d.PolicyVersion, Mode: d.Mode, Phase: d.Phase.String(),
		Fault: d.Fault, Rung: d.Rung, Brake: d.Brake, Why: d.Why}
	if d.OperationID != "" {
		p.OperationID = &d.OperationID
	}
	return tx.AddDecision(ctx, p)
}

// Started implements activities.RepairDecisions.
func (s *Recovery) Started(ctx context.Context, operationID string) error {
	return s.db.Call(ctx, "recording the start of operation "+operationID, func(ctx context.Context) error {
		return ledger{s.db.q}.confirm(ctx, operationID)
	})
}

// Refused implements activities.RepairDecisions. The attempt never took place, so it does not count for the
// brakes; the node is left alone for refusedFor instead.
func (s *Recovery) Refused(ctx context.Context, operationID, why string) error {
	return s.db.write(ctx, "releasing the reservation of operation "+operationID, func(ctx context.Context, tx *tx) error {
		decisionID, err := ledger{tx.Queries}.withdraw(ctx, operationID)
		if err != nil || decisionID == "" {
			return err
		}
		if err := tx.DeleteAttempts(ctx, operationID); err != nil {
			return err
		}
		d, err := tx.DecisionOf(ctx, decisionID)
		if err != nil {
			return orMissing(err, nil)
		}
		why = text.Line("the start of the repair was rejected: "+cleanText(why), maxWhy)
		row := record.Decision{DecisionID: schema.NewID(), NodeID: d.NodeID, PolicyVersion: d.PolicyVersion, Mode: d.Mode, Phase: phaseNamed(d.Phase),
			Fault: d.Fault, Rung: d.Rung, Brake: recovery.BrakeHeld, Why: why}
		if err := addDecision(ctx, tx, row); err != nil {
			return err
		}
		if err := recordSignal(ctx, tx, signalOf(row)); err != nil {
			return err
		}
		return tx.RefuseState(ctx, sqlc.RefuseStateParams{NodeID: d.NodeID, Refused: why, DecisionID: row.DecisionID, Why: why})
	})
}

// refusedFor is how long a node is left alone after the start of its repair was rejected.
const refusedFor = 5 * time.Minute

// phaseNamed returns the phase with the name, PhaseUnknown if there is none: a newer program may have
// stored it.
func phaseNamed(name string) health.Phase {
	p, _ := health.ParsePhase(name) // the zero value is PhaseUnknown
	return p
}

// newestPolicy returns the newest stored policy, the default one with version 0 if there is none.
func newestPolicy(ctx context.Context, q *sqlc.Queries) (record.Policy, error) {
	row, err := q.NewestPolicy(ctx)
	if postgres.NotFound(err) {
		return record.DefaultPolicy()
	}
	if err != nil {
		return record.Policy{}, err
	}
	return policyOf(row), nil
}

func policyOf(row sqlc.NewestPolicyRow) record.Policy {
	return record.Policy{Version: row.Version, Digest: row.Digest, Mode: recovery.Mode(row.Mode), Actor: row.Actor, Via: row.Via, Reason: row.Reason, At: row.CreatedAt.UTC(), Body: row.Body}
}
