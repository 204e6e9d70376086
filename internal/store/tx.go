package store

import (
	"context"
	"errors"

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

// record writes the lasting part of a refusal.
func (r *refusal) record(ctx context.Context, tx *tx) error {
	if r.clone != nil {
		return lockIdentity(ctx, tx, *r.clone, r.event)
	}
	tx.note(r.event)
	return nil
}

// write runs fn in a transaction, appends its audit rows, commits and sends its
// notifications. A refusal rolls back fn's changes and commits its audit row in a
// second transaction.
func (db *db) write(ctx context.Context, doing string, fn func(context.Context, *tx) error) error {
	return db.Exec(ctx, doing, func(ctx context.Context) error {
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
		db.notifier.Notify(wakes...)
	}
	return err
}

// lockNode locks the node's row until the end of the transaction. KindNotFound if
// there is no such node.
func (tx *tx) lockNode(ctx context.Context, nodeID string) (sqlc.LockNodeRow, error) {
	if !schema.IsID(nodeID) {
		return sqlc.LockNodeRow{}, errNoNode(nodeID)
	}
	n, err := tx.LockNode(ctx, nodeID)
	if postgres.NotFound(err) {
		return n, errNoNode(nodeID)
	}
	return n, err
}

// lockHeld locks the node for a write of the fence's operation and returns both.
// KindFenced if another operation has claimed the node since.
func (tx *tx) lockHeld(ctx context.Context, f activities.Fence) (sqlc.LockNodeRow, sqlc.GetOperationRow, error) {
	n, err := tx.lockNode(ctx, f.NodeID)
	if err != nil {
		return n, sqlc.GetOperationRow{}, err
	}
	if n.OpSeq != f.OpSeq || f.OpSeq == 0 {
		return n, sqlc.GetOperationRow{}, errFenced(f, n.OpSeq)
	}
	op, err := tx.operation(ctx, f)
	return n, op, err
}

// lockOperation is lockHeld for a write of the operation's own row, which an
// operation that does not hold its node (op_seq 0) may also make.
func (tx *tx) lockOperation(ctx context.Context, f activities.Fence) (sqlc.LockNodeRow, sqlc.GetOperationRow, error) {
	if f.OpSeq != 0 {
		return tx.lockHeld(ctx, f)
	}
	n, err := tx.lockNode(ctx, f.NodeID)
	if err != nil {
		return n, sqlc.GetOperationRow{}, err
	}
	op, err := tx.operation(ctx, f)
	return n, op, err
}

// operation returns the fence's operation. KindFenced if there is none.
func (tx *tx) operation(ctx context.Context, f activities.Fence) (sqlc.GetOperationRow, error) {
	if !schema.IsID(f.OperationID) {
		return sqlc.GetOperationRow{}, errFenced(f, 0)
	}
	op, err := tx.GetOperation(ctx, f.OperationID)
	if postgres.NotFound(err) || err == nil && (op.OpSeq != f.OpSeq || op.NodeID != f.NodeID) {
		return op, errFenced(f, 0)
	}
	return op, err
}

// moveNode sets the node's state outside an operation.
func (tx *tx) moveNode(ctx context.Context, n sqlc.LockNodeRow, to lifecycle.NodeState) error {
	if n.State == to {
		return nil
	}
	_, err := tx.SetNodeState(ctx, n.NodeID, n.OpSeq, to)
	return err
}

// requireRow turns a fenced statement that changed no row into KindFenced. The
// node's lock rules that out; the statement checks it again.
func requireRow(f activities.Fence) func(rows int64, err error) error {
	return func(rows int64, err error) error {
		if err == nil && rows == 0 {
			return errFenced(f, 0)
		}
		return err
	}
}

func errNoNode(id string) error { return schema.Errorf(schema.KindNotFound, "no node %q", id) }

func errFenced(f activities.Fence, now int64) error {
	return schema.Errorf(schema.KindFenced,
		"operation %s (op_seq %d) no longer holds node %s (op_seq %d)", f.OperationID, f.OpSeq, f.NodeID, now)
}

func errOperationEnded(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "operation %s has ended", f.OperationID).WithReason("operation_over")
}

// setOperationRun records the run that now executes the operation, "" for none.
func (tx *tx) setOperationRun(ctx context.Context, operationID, runID string) error {
	if runID == "" {
		return nil
	}
	return tx.SetOperationRun(ctx, runID, operationID)
}
