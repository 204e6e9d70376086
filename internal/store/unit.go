package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// unit is one transaction together with the audit rows it makes. Locks are
// taken in one order everywhere, so that no two transactions wait for each
// other: the node, then its tasks, tokens and certificates, and at the very end
// the head of its audit stream. What is one statement without a unit (EnqueueTask,
// NextTask, FinishTask) keeps to that order, and leaves out the node where it
// changes nothing of it: it fences itself by the columns of the row that it
// updates, which Postgres reads once more, as they are by then, where it had to
// wait for the row.
type unit struct {
	*sqlc.Queries
	// later takes statements whose only outcome is that they fail: they go out
	// with the next question or with the commit, whose failure theirs is.
	later  *sqlc.Queries
	events []audit.Event
}

// note adds an audit row, written when the rest of the transaction is done.
func (u *unit) note(e audit.Event) { u.events = append(u.events, e) }

// refusal ends a unit without a change but with an audit row, and with the
// node's identity locked when the caller shows that two hold it.
type refusal struct {
	err   *schema.Error
	event audit.Event
	clone *clone
}

// Error implements error.
func (r *refusal) Error() string { return r.err.Error() }

// refuse turns err into a refusal that is put on record as e, with the error's
// reason, or its kind when it has none. An error of the database is no refusal
// and passes as it is.
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

// record is what a refusal leaves in the database.
func (r *refusal) record(ctx context.Context, u *unit) error {
	if r.clone != nil {
		return u.lockIdentity(ctx, *r.clone, r.event)
	}
	u.note(r.event)
	return nil
}

// write runs fn in a transaction and adds its audit rows at the end. A refusal
// undoes what fn did, and its audit row is committed by itself.
func (s *Store) write(ctx context.Context, doing string, fn func(context.Context, *unit) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.transact(ctx, fn)
	if r, ok := errors.AsType[*refusal](err); ok {
		if err = s.transact(ctx, r.record); err == nil {
			return r.err
		}
	}
	return interpretError(err, s.address, doing)
}

func (s *Store) transact(ctx context.Context, fn func(context.Context, *unit) error) error {
	return s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		p := newPipeline(c.Conn())
		u := &unit{Queries: sqlc.New(p), later: sqlc.New(queue{p})}
		err := fn(ctx, u)
		if err == nil {
			err = u.writeAudit(ctx)
		}
		if err != nil {
			p.rollback(ctx)
			return err
		}
		return p.commit(ctx)
	})
}

// read runs fn outside a transaction.
func (s *Store) read(ctx context.Context, doing string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return interpretError(fn(ctx), s.address, doing)
}

// lockNode locks the node's row until the end of the unit, or answers
// KindNotFound.
func (u *unit) lockNode(ctx context.Context, nodeID string) (sqlc.LockNodeRow, error) {
	if !schema.IsID(nodeID) {
		return sqlc.LockNodeRow{}, errNoNode(nodeID)
	}
	n, err := u.LockNode(ctx, nodeID)
	if notFound(err) {
		return n, errNoNode(nodeID)
	}
	return n, err
}

// owned locks the node for a write of the fence's operation and returns both.
// KindFenced when another operation was given the node since.
func (u *unit) owned(ctx context.Context, f activities.Fence) (sqlc.LockNodeRow, sqlc.GetOperationRow, error) {
	var none sqlc.GetOperationRow
	n, err := u.lockNode(ctx, f.NodeID)
	if err != nil {
		return n, none, err
	}
	if n.OpSeq != f.OpSeq || f.OpSeq == 0 {
		return n, none, errFenced(f, n.OpSeq)
	}
	op, err := u.operation(ctx, f)
	return n, op, err
}

// recorded is owned for writes of an operation's own row: an operation that
// does not hold its node (op_seq 0) owns nothing else.
func (u *unit) recorded(ctx context.Context, f activities.Fence) (sqlc.LockNodeRow, sqlc.GetOperationRow, error) {
	if f.OpSeq != 0 {
		return u.owned(ctx, f)
	}
	n, err := u.lockNode(ctx, f.NodeID)
	if err != nil {
		return n, sqlc.GetOperationRow{}, err
	}
	op, err := u.operation(ctx, f)
	return n, op, err
}

// operation returns the fence's operation. KindFenced when there is none.
func (u *unit) operation(ctx context.Context, f activities.Fence) (sqlc.GetOperationRow, error) {
	if !schema.IsID(f.OperationID) {
		return sqlc.GetOperationRow{}, errFenced(f, 0)
	}
	op, err := u.GetOperation(ctx, f.OperationID)
	if notFound(err) || err == nil && (op.OpSeq != f.OpSeq || op.NodeID != f.NodeID) {
		return op, errFenced(f, 0)
	}
	return op, err
}

// one turns the number of rows a fenced statement changed into KindFenced when
// it is none. The lock of the unit makes that impossible; the statement checks
// all the same.
func one(f activities.Fence) func(rows int64, err error) error {
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
		"operation %s (op_seq %d) no longer owns node %s (op_seq %d)", f.OperationID, f.OpSeq, f.NodeID, now)
}

func errOver(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "operation %s is over", f.OperationID).WithReason("operation_over")
}
