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
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// watchedBatch reads the open operations after one that are old enough to be watched.
const watchedBatch = "SELECT " + operationColumns + fromOperations + ` WHERE o.status IN ('accepted', 'running', 'parked', 'abandoned')
	AND o.operation_id > $1 AND o.started_at < now() - make_interval(secs => $2) ORDER BY o.operation_id LIMIT $3`

// Watched implements activities.Abandoner.
func (s *Operations) Watched(ctx context.Context, after string, limit int) ([]activities.WatchedOperation, error) {
	if after == "" {
		after = noTask
	}
	return s.watched(ctx, "listing the operations to watch", watchedBatch, after, lifecycle.WatchGrace.Seconds(), limit)
}

// OpenOperations returns the open operations of the node, abandoned ones included: the
// one that holds the node first, then its reissue. It is empty if there is none.
func (s *Operations) OpenOperations(ctx context.Context, nodeID string) ([]activities.WatchedOperation, error) {
	if !schema.IsID(nodeID) {
		return nil, errNoNode(nodeID)
	}
	return s.watched(ctx, "reading the operations of node "+nodeID, openOperations, []string{nodeID})
}

func (s *Operations) watched(ctx context.Context, doing, sql string, args ...any) ([]activities.WatchedOperation, error) {
	rows, err := query(ctx, s.db, doing, func(ctx context.Context) ([]wire.OperationSummary, error) {
		return list[wire.OperationSummary](ctx, s.db, sql, args...)
	})
	return convert(rows, func(o wire.OperationSummary) activities.WatchedOperation {
		return activities.WatchedOperation{Operation: operationStatus(nil, o, "").Operation, NodeID: o.NodeID, Host: o.Host}
	}), err
}

// Abandon implements activities.Abandoner. KindInvalidRequest if end is unknown.
func (s *Operations) Abandon(ctx context.Context, operationID, runID string, end lifecycle.RunEnd) (marked bool, err error) {
	if !slices.Contains(lifecycle.RunEnds(), end) {
		return false, schema.NewError(schema.KindInvalidRequest, "unknown end of a run: %q", end)
	}
	return write(ctx, s.db, "abandoning operation "+operationID, func(ctx context.Context, tx *tx) (bool, error) {
		node, op, err := tx.lockOpen(ctx, operationID)
		if err != nil || op.OperationID == "" || op.NewestRunID != runID || op.Status == lifecycle.OperationAbandoned {
			return false, err
		}
		if err := abandon(ctx, tx, node, op, end); err != nil {
			return false, err
		}
		return true, endRestored(ctx, tx, node, operationID)
	})
}

// endRestored records an operation as failed that was just abandoned, if the restore mode
// is on: the run ended in the time that the database does not have.
func endRestored(ctx context.Context, tx *tx, n sqlc.LockNodeRow, operationID string) error {
	on, err := tx.restoring(ctx)
	if err != nil || !on {
		return err
	}
	r := rehydration{tx: tx, node: n, reason: "restore_mode", by: audit.Subject{Actor: systemActor}}
	open, err := tx.OpenOperations(ctx, n.NodeID)
	for _, op := range open {
		if op.OperationID == operationID {
			return r.accept(ctx, op)
		}
	}
	return err
}

// Continue implements activities.Abandoner.
func (s *Operations) Continue(ctx context.Context, operationID, runID string) error {
	return s.db.write(ctx, "continuing operation "+operationID, func(ctx context.Context, tx *tx) error {
		_, op, err := tx.lockOpen(ctx, operationID)
		if err != nil || op.NewestRunID != runID || op.Status != lifecycle.OperationAbandoned {
			return err
		}
		return continueOperation(ctx, tx, op)
	})
}

// continueOperation gives an abandoned operation the park, the deadline and the phases
// again that it had before: its run may wait without a further write. The tasks stay
// void.
func continueOperation(ctx context.Context, tx *tx, op sqlc.OpenOperationsRow) error {
	p := sqlc.AdvanceOperationParams{OperationID: op.OperationID, OpSeq: op.OpSeq, Status: lifecycle.OperationRunning,
		Phase: op.Phase, Step: op.Step, Document: op.Document}
	if was := op.BeforeAbandon; was != nil {
		if was.Stuck == nil {
			was.Status = lifecycle.OperationRunning
		}
		p.Status, p.Stuck = was.Status, was.Stuck
		if op.Document != nil {
			op.Document.Operation = *was
		}
	}
	return tx.AdvanceOperation(ctx, p)
}

// lockOpen locks the operation's node and returns both. The operation is empty if it is
// not open.
func (tx *tx) lockOpen(ctx context.Context, operationID string) (n sqlc.LockNodeRow, op sqlc.OpenOperationsRow, err error) {
	if !schema.IsID(operationID) {
		return n, op, errNoOperation(operationID)
	}
	found, err := tx.GetOperation(ctx, operationID)
	if err != nil {
		return n, op, orMissing(err, errNoOperation(operationID))
	}
	if n, err = tx.lockNode(ctx, found.NodeID); err != nil {
		return n, op, err
	}
	open, err := tx.OpenOperations(ctx, n.NodeID)
	if i := slices.IndexFunc(open, func(o sqlc.OpenOperationsRow) bool { return o.OperationID == operationID }); i >= 0 {
		op = open[i]
	}
	return n, op, err
}

func abandon(ctx context.Context, tx *tx, n sqlc.LockNodeRow, op sqlc.OpenOperationsRow, end lifecycle.RunEnd) error {
	plan, o := planOf(op)
	stuck := plan.Abandoned(nodeRef(n), op.Claim.Prior, o, end)
	stuck.Phase, stuck.Since = op.Phase, n.Now.UTC()
	before := lifecycle.Operation{}
	if op.Document != nil {
		before = op.Document.Operation
		before.Phases = slices.Clone(before.Phases)
	}
	before.Status, before.Stuck = op.Status, op.Stuck
	if op.Document != nil {
		endPhase(&op.Document.Operation, stuck.Message, stuck.Since)
		op.Document.Operation.Status, op.Document.Operation.Stuck = lifecycle.OperationAbandoned, &stuck
		op.Document.Operation.DeadlineAt = nil
		op.Document.Node = nodeRef(n)
	}
	if err := tx.AdvanceOperation(ctx, sqlc.AdvanceOperationParams{
		OperationID: op.OperationID, OpSeq: op.OpSeq, Status: lifecycle.OperationAbandoned,
		Phase: op.Phase, Step: op.Step, Stuck: &stuck, Document: op.Document, BeforeAbandon: &before,
	}); err != nil {
		return err
	}
	f := activities.Fence{NodeID: n.NodeID, OperationID: op.OperationID, Actor: systemActor, CorrelationID: op.CorrelationID}
	notePark(tx, f, op.Action, stuck, "")
	tx.wakeNode(n.NodeID)
	return tx.voidTasks(ctx, n.NodeID, &op.OperationID, systemActor, "")
}

// planOf returns the plan of an operation, and the options it was started with.
func planOf(op sqlc.OpenOperationsRow) (p lifecycle.Plan, o lifecycle.Options) {
	if op.Document != nil {
		o = op.Document.Operation.Options
	}
	p, _ = lifecycle.PlanOf(op.Action, o)
	return p, o
}

func nodeRef(n sqlc.LockNodeRow) lifecycle.NodeRef {
	return lifecycle.NodeRef{NodeID: n.NodeID, Host: n.Host, State: n.State}
}

// endPhase marks the phase in which the operation's run ended.
func endPhase(op *lifecycle.Operation, reason string, at time.Time) {
	for i := range op.Phases {
		if p := &op.Phases[i]; p.State == lifecycle.PhaseRunning || p.State == lifecycle.PhaseParked {
			p.State, p.Reason, p.EndedAt = lifecycle.PhaseFailed, reason, &at
		}
	}
}

// AcceptAbandoned accepts the end of the node's abandoned operations; see
// lifecycle.Rehydration. A repeated call changes nothing. KindNotFound if there is no
// such node. KindInvalidRequest, reason not_abandoned, if the node has open operations
// and none is abandoned.
func (s *Operations) AcceptAbandoned(ctx context.Context, nodeID, reason string, by audit.Subject) (lifecycle.Rehydration, error) {
	event := subjectEvent(by, nodeID, audit.NodeRehydrated, nodeID, map[string]string{"requested_reason": reason})
	return write(ctx, s.db, "rehydrating node "+nodeID, func(ctx context.Context, tx *tx) (lifecycle.Rehydration, error) {
		node, err := tx.lockNode(ctx, nodeID)
		if schema.KindOf(err) == schema.KindNotFound {
			event.Stream = audit.SystemStream
			return lifecycle.Rehydration{}, refuse(err, event)
		}
		if err != nil {
			return lifecycle.Rehydration{}, err
		}
		r := rehydration{tx: tx, node: node, reason: reason, by: by,
			done: lifecycle.Rehydration{Node: nodeRef(node), From: node.State, Ended: []lifecycle.EndedOperation{}}}
		open, err := tx.OpenOperations(ctx, nodeID)
		if err != nil {
			return r.done, err
		}
		for _, op := range open {
			if op.Status != lifecycle.OperationAbandoned {
				continue
			}
			if err := r.accept(ctx, op); err != nil {
				return r.done, err
			}
		}
		if len(open) > 0 && len(r.done.Ended) == 0 {
			return r.done, refuse(errNotAbandoned(node, open[0]), event)
		}
		if len(open) == 0 {
			if err := r.restore(ctx, event); err != nil {
				return r.done, err
			}
		}
		provider, err := providerOf(ctx, tx, node.OnboardingMode)
		r.done.Cordoned, r.done.Next = node.Cordoned, lifecycle.NodeNext(r.done.Node, node.Cordoned, provider.Creates)
		return r.done, err
	})
}

// rehydration is the transaction of AcceptAbandoned.
type rehydration struct {
	tx     *tx
	node   sqlc.LockNodeRow
	reason string
	by     audit.Subject
	done   lifecycle.Rehydration
}

func errNotAbandoned(n sqlc.LockNodeRow, op sqlc.OpenOperationsRow) error {
	return schema.NewError(schema.KindInvalidRequest, "operation %s of node %s is %s: its workflow run is open", op.OperationID, n.Host, op.Status).
		WithReason(lifecycle.ReasonNotAbandoned).WithNext(lifecycle.OpCommand("show", op.Action, n.Host))
}

// restore ends a state that only an operation ends, of a node that no operation holds: the state
// before the last operation returns. Without its record the node is quarantined, because nothing says
// whether it may get work.
func (r *rehydration) restore(ctx context.Context, event audit.Event) error {
	n := r.node
	if n.State.Without(lifecycle.NodeQuarantined) == n.State {
		return nil
	}
	prior, err := r.tx.StateBeforeOperation(ctx, n.NodeID, n.OpSeq)
	if err != nil && !postgres.NotFound(err) {
		return err
	}
	to, err := stateAfter(ctx, r.tx, n.NodeID, cmp.Or(lifecycle.NodeState(prior), lifecycle.NodeQuarantined).Without(lifecycle.NodeQuarantined))
	if err != nil {
		return err
	}
	if err := r.tx.SetNodeState(ctx, n.NodeID, n.OpSeq, to); err != nil {
		return err
	}
	if err := followNode(ctx, r.tx, n.NodeID, to, map[string]string{}); err != nil {
		return err
	}
	event.Reason, event.Detail = r.reason, map[string]string{"from": string(n.State), "to": string(to)}
	r.tx.note(event)
	r.done.Node.State = to
	r.tx.wakeNode(n.NodeID)
	return nil
}

// accept ends one abandoned operation as failed. If it holds the node, accept restores
// the node's state and releases the node.
func (r *rehydration) accept(ctx context.Context, op sqlc.OpenOperationsRow) error {
	n, to := r.node, r.node.State
	if op.OpSeq > 0 {
		var err error
		if to, err = stateAfter(ctx, r.tx, n.NodeID, to.Without(op.Claim.Prior)); err != nil {
			return err
		}
		if to != n.State {
			if err := r.tx.SetNodeState(ctx, n.NodeID, n.OpSeq, to); err != nil {
				return err
			}
			if err := followNode(ctx, r.tx, n.NodeID, to, map[string]string{}); err != nil {
				return err
			}
		}
		if err := r.tx.ReleaseNode(ctx, n.NodeID, n.OpSeq); err != nil {
			return err
		}
	}
	end := lifecycle.EndedOperation{OperationID: op.OperationID, Action: op.Action, Reason: lifecycle.RunEnd(op.Stuck.Reason),
		Outcome: "its run ended: " + op.Stuck.Reason + "; the node stays " + string(to)}
	if to != n.State {
		end.Outcome = "its run ended: " + op.Stuck.Reason + "; the node's state was restored: " + string(to)
	}
	if op.Document != nil {
		op.Document.Operation.End(lifecycle.OperationFailed, end.Outcome, n.Now.UTC())
		op.Document.Node.State = to
	}
	if err := r.tx.FinishOperation(ctx, sqlc.FinishOperationParams{OperationID: op.OperationID, OpSeq: op.OpSeq,
		Status: lifecycle.OperationFailed, Outcome: end.Outcome, Document: op.Document}); err != nil {
		return err
	}
	r.done.Ended, r.done.Node.State, r.node.State = append(r.done.Ended, end), to, to
	r.note(op, end, n.State, to)
	r.tx.wakeNode(n.NodeID)
	if plan, _ := planOf(op); plan.CancelVoidsTokens {
		if err := voidUnusedTokens(ctx, r.tx, n.NodeID, op.OpSeq > 0); err != nil {
			return err
		}
	}
	return r.tx.voidTasks(ctx, n.NodeID, &op.OperationID, r.by.Actor, r.by.Via)
}

func (r *rehydration) note(op sqlc.OpenOperationsRow, end lifecycle.EndedOperation, from, to lifecycle.NodeState) {
	detail := map[string]string{"outcome": end.Outcome}
	if from != to {
		detail["from"], detail["to"] = string(from), string(to)
	}
	e := subjectEvent(r.by, r.node.NodeID, audit.NodeRehydrated, r.node.NodeID, detail)
	e.Reason, e.OperationID = r.reason, op.OperationID
	r.tx.note(e)
	f := activities.Fence{NodeID: r.node.NodeID, OperationID: op.OperationID, Actor: systemActor, CorrelationID: op.CorrelationID}
	r.tx.note(operationEvent(f, audit.ActionName(op.Action), audit.Failed, op.Stuck.Reason, map[string]string{"outcome": end.Outcome}))
}
