package store

import (
	"context"
	"strconv"

	"github.com/gpuaas/gpuaas/schema/task"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Reasons of the audit rows about a node's counters.
const (
	floorsAhead       = "counters_ahead"
	floorsImplausible = "counters_implausible"
)

// raiseFloors raises the node's counters on record to those of its poll. It writes at most
// once a minute per node and reason, so that a node that always reports more does not
// cost a write per poll. A jump by more than wire.MaxFloorRaise is only audited: no node can
// use up the range of its counters.
func raiseFloors(ctx context.Context, db *db, c nodeapi.Caller, f task.Floors) error {
	task, identity := f.TaskSeq-c.Floors.TaskSeq, f.IdentitySequence-c.Floors.IdentitySequence
	if task <= 0 && identity <= 0 {
		return nil
	}
	plausible := task <= wire.MaxFloorRaise && identity <= wire.MaxFloorRaise
	e := nodeEvent(c.NodeID, audit.FloorsRaised, audit.Succeeded, map[string]string{
		"task_seq": strconv.FormatInt(f.TaskSeq, 10), "task_seq_on_record": strconv.FormatInt(c.Floors.TaskSeq, 10),
		"identity_sequence": strconv.FormatInt(f.IdentitySequence, 10), "identity_sequence_on_record": strconv.FormatInt(c.Floors.IdentitySequence, 10)})
	e.Reason = floorsAhead
	if !plausible {
		e.Result, e.Reason = audit.Refused, floorsImplausible
	}
	return db.write(ctx, "raising the counters of node "+c.NodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, c.NodeID)
		if schema.KindOf(err) == schema.KindNotFound || err == nil && node.Incarnation != c.Incarnation {
			return nil
		}
		if err != nil {
			return err
		}
		noted, err := noteLimited(ctx, tx, c.NodeID, e.Reason, e)
		if err != nil || !noted || !plausible {
			return err
		}
		return tx.RaiseFloors(ctx, sqlc.RaiseFloorsParams{TaskSeq: f.TaskSeq, IdentitySequence: f.IdentitySequence,
			NodeID: c.NodeID, Incarnation: c.Incarnation})
	})
}
