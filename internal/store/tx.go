package store

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// tx is one transaction with the audit rows it appends before the commit and the
// notifications it sends after it.
//
// To rule out deadlocks, all transactions take locks in one order: the node, its
// tasks, its tokens and certificates, and last the head of its audit stream.
// EnqueueTask and NextTask are single statements with the same order. ExtendLease
// and NextTask skip the node because they change none of its columns.
type tx struct {
	*sqlc.Queries
	events []audit.Event
	wakes  []postgres.Notification
}

// note adds an audit row, which is appended right before the commit.
func (tx *tx) note(e audit.Event) { tx.events = append(tx.events, e) }

// noteLimited adds an audit row at most once a minute per node and limit, since a node may
// repeat a request without end. It reports whether it added the row.
func noteLimited(ctx context.Context, tx *tx, nodeID, limit string, e audit.Event) (noted bool, err error) {
	rows, err := tx.RecordRefusal(ctx, nodeID, limit)
	if err != nil || rows == 0 {
		return false, err
	}
	tx.note(e)
	return true, nil
}

// notify adds a notification, which is sent after the commit.
func (tx *tx) notify(channel, payload string) {
	tx.wakes = append(tx.wakes, postgres.Notification{Channel: channel, Payload: payload})
}

// wakeNode wakes the node's polls after the commit.
func (tx *tx) wakeNode(nodeID string) { tx.notify(channelNode, nodeID) }

// refusal rolls a transaction back but leaves an audit row and, if the caller
// proved that two machines share an identity, the lock of that identity.
type refusal struct {
	err   *schema.Error
	event audit.Event
	clone *clone
	// alarm is set if the refused request raises an alarm.
	alarm *clone
	// limit is set if the row is written at most once a minute per node and limit.
	limit string
}

// Error implements error.
func (r *refusal) Error() string { return r.err.Error() }

// refuse turns err into a refusal that is audited as e, with the error's reason or
// else its kind. A driver's error is not a refusal and is returned unchanged.
func refuse(err error, e audit.Event) error {
	cause, typed := errors.AsType[*schema.Error](err)
	if !typed {
		return err
	}
	e.Result, e.Reason = audit.Refused, cause.Reason
	if e.Reason == "" {
		e.Reason = string(cause.Kind)
	}
	return &refusal{err: cause, event: e}
}

// refuseNode is refuse with at most one audit row a minute per node and reason, since the
// holder of a token may repeat a refused request without end. The event's stream is the
// node's.
func refuseNode(err error, e audit.Event) error {
	refused := refuse(err, e)
	if r, ok := errors.AsType[*refusal](refused); ok {
		r.limit = r.event.Reason
	}
	return refused
}

// refuseTask is refuse with at most one audit row a minute per task and reason, since a
// node may repeat a refused request without end.
func refuseTask(err error, e audit.Event) error {
	refused := refuse(err, e)
	if r, ok := errors.AsType[*refusal](refused); ok {
		r.limit = r.event.Reason + " " + r.event.Target
	}
	return refused
}

// record writes the lasting part of a refusal.
func (r *refusal) record(ctx context.Context, tx *tx) error {
	if r.clone != nil {
		on, err := tx.restoring(ctx)
		if err != nil || !on {
			return errors.Join(err, lockIdentity(ctx, tx, *r.clone, r.event))
		}
		// A restore makes identities look older than they are: it proves no clone.
		r.err, r.event.Action, r.event.Result, r.limit = schema.AsError(errSuperseded()), audit.IdentityRefused, audit.Refused, r.clone.reason
	}
	if r.alarm != nil {
		if err := raiseAlarm(ctx, tx, *r.alarm, r.event); err != nil {
			return err
		}
	}
	if r.limit != "" {
		_, err := noteLimited(ctx, tx, r.event.Stream, r.limit, r.event)
		return err
	}
	tx.note(r.event)
	return nil
}

// write runs fn in a transaction, appends its audit rows, commits and sends its
// notifications. A refusal rolls back fn's changes and commits its audit row in a
// second transaction.
func (db *db) write(ctx context.Context, doing string, fn func(context.Context, *tx) error) error {
	return db.Call(ctx, doing, func(ctx context.Context) error {
		err := db.commit(ctx, fn)
		if r, ok := errors.AsType[*refusal](err); ok {
			if err = db.commit(ctx, r.record); err == nil {
				return r.err
			}
		}
		return err
	})
}

func (db *db) commit(ctx context.Context, fn func(context.Context, *tx) error) error {
	var wakes []postgres.Notification
	err := db.Tx(ctx, func(ctx context.Context, t pgx.Tx) error {
		tx := &tx{Queries: sqlc.New(t)}
		if err := fn(ctx, tx); err != nil {
			return err
		}
		wakes = tx.wakes
		return tx.appendAudit(ctx)
	})
	if err == nil {
		db.wake(wakes...)
	}
	return err
}

// wake sends notifications, and wakes this process's relay without one. A message that
// this relay does not deliver is taken by another one at its next idle query.
func (db *db) wake(wakes ...postgres.Notification) {
	db.notifier.Notify(slices.DeleteFunc(wakes, func(n postgres.Notification) bool {
		local := n.Channel == channelOutbox && db.relaying != nil
		if local {
			db.relaying.wake(channelOutbox)
		}
		return local
	})...)
}

// write is db.write for an fn with a result, which is zero after an error.
func write[T any](ctx context.Context, db *db, doing string, fn func(context.Context, *tx) (T, error)) (T, error) {
	var result, none T
	err := db.write(ctx, doing, func(ctx context.Context, tx *tx) (err error) {
		result, err = fn(ctx, tx)
		return err
	})
	if err != nil {
		return none, err
	}
	return result, nil
}

// query runs a statement under the call timeout and returns its result.
func query[T any](ctx context.Context, db *db, doing string, run func(context.Context) (T, error)) (result T, err error) {
	err = db.Call(ctx, doing, func(ctx context.Context) (err error) {
		return db.Retry(func() error {
			result, err = run(ctx)
			return err
		})
	})
	return result, err
}

// orMissing replaces the error of a query that found no row.
func orMissing(err, missing error) error {
	if postgres.NotFound(err) {
		return missing
	}
	return err
}

// convert applies fn to each row.
func convert[R, T any](rows []R, fn func(R) T) []T {
	var out []T
	for _, r := range rows {
		out = append(out, fn(r))
	}
	return out
}

// lockNode locks the node's row until the end of the transaction. KindNotFound if
// there is no such node.
func (tx *tx) lockNode(ctx context.Context, nodeID string) (sqlc.LockNodeRow, error) {
	if !schema.IsID(nodeID) {
		return sqlc.LockNodeRow{}, errNoNode(nodeID)
	}
	n, err := tx.LockNode(ctx, nodeID)
	return n, orMissing(err, errNoNode(nodeID))
}

// lockNodeOf is lockNode for a write of an operation. KindFenced if there is no such node.
func (tx *tx) lockNodeOf(ctx context.Context, f activities.Fence) (sqlc.LockNodeRow, error) {
	n, err := tx.lockNode(ctx, f.NodeID)
	if schema.KindOf(err) == schema.KindNotFound {
		err = errFenced(f, 0)
	}
	return n, err
}

// lockHeld is lockOperation for a write that only the operation that holds the
// node may make.
func (tx *tx) lockHeld(ctx context.Context, f activities.Fence) (sqlc.GetOperationRow, error) {
	if f.OpSeq == 0 {
		return sqlc.GetOperationRow{}, errFenced(f, 0)
	}
	_, op, err := tx.lockOperation(ctx, f)
	return op, err
}

// lockOpenHolder is lockHeld for an operation that must not have ended.
func (tx *tx) lockOpenHolder(ctx context.Context, f activities.Fence) error {
	op, err := tx.lockHeld(ctx, f)
	if err == nil && op.EndedAt != nil {
		return errOperationEnded(f)
	}
	return err
}

// lockOperation locks the fence's node for a write of its operation and returns
// both. KindFenced if there is no such operation or node, as after a restore of the
// database, or if another one has claimed the node since; an operation that does not hold
// its node has op_seq 0.
func (tx *tx) lockOperation(ctx context.Context, f activities.Fence) (n sqlc.LockNodeRow, op sqlc.GetOperationRow, err error) {
	if n, err = tx.lockNodeOf(ctx, f); err != nil {
		return n, op, err
	}
	if f.OpSeq != 0 && n.OpSeq != f.OpSeq {
		return n, op, errFenced(f, n.OpSeq)
	}
	op, err = tx.fenced(ctx, f)
	return n, op, err
}

// fenced returns the operation that has the fence. KindFenced if there is none.
func (tx *tx) fenced(ctx context.Context, f activities.Fence) (sqlc.GetOperationRow, error) {
	if !schema.IsID(f.OperationID) {
		return sqlc.GetOperationRow{}, errFenced(f, 0)
	}
	op, err := tx.GetOperation(ctx, f.OperationID)
	if err == nil && (op.OpSeq != f.OpSeq || op.NodeID != f.NodeID) {
		return op, errFenced(f, 0)
	}
	return op, orMissing(err, errFenced(f, 0))
}

// moveNode sets the node's state outside an operation.
func (tx *tx) moveNode(ctx context.Context, n sqlc.LockNodeRow, to lifecycle.NodeState) error {
	if n.State == to {
		return nil
	}
	return tx.SetNodeState(ctx, n.NodeID, n.OpSeq, to)
}

func errNoNode(id string) error { return schema.NewError(schema.KindNotFound, "no node %q", id) }

func errFenced(f activities.Fence, now int64) error {
	return schema.NewError(schema.KindFenced,
		"operation %s (op_seq %d) no longer holds node %s (op_seq %d)", f.OperationID, f.OpSeq, f.NodeID, now)
}

func errOperationEnded(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "operation %s has ended", f.OperationID).WithReason(lifecycle.ReasonOperationOver)
}

// errUndoBegan refuses the progress of a run that was reset to before the operation's undo.
func errUndoBegan(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "the undo of operation %s has begun", f.OperationID).WithReason(lifecycle.ReasonUndoBegan)
}

// takeUp records the run that continues the operation, "" if it is not known, and that
// the operation is not abandoned.
func (tx *tx) takeUp(ctx context.Context, op sqlc.GetOperationRow, runID string) error {
	if op.Status == lifecycle.OperationAbandoned {
		_, open, err := tx.lockOpen(ctx, op.OperationID)
		if err != nil {
			return err
		}
		if err := continueOperation(ctx, tx, open); err != nil {
			return err
		}
	}
	if runID == "" || runID == op.NewestRunID {
		return nil
	}
	return tx.SetOperationRun(ctx, runID, op.OperationID)
}
