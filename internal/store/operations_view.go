package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxOperations bounds the operations of one list.
const maxOperations = 1000

// Operations lists up to 1000 operations, newest first: those of one node if nodeID
// is not empty, only open ones if open.
func (s *Inventory) Operations(ctx context.Context, nodeID string, open bool) ([]wire.OperationSummary, error) {
	var list []wire.OperationSummary
	err := s.db.Read(ctx, "listing operations", func(ctx context.Context) error {
		var filter *string
		if nodeID != "" {
			if !schema.IsID(nodeID) {
				return errNoNode(nodeID)
			}
			filter = &nodeID
		}
		rows, err := s.db.q.ListOperations(ctx, filter, open, maxOperations)
		list = make([]wire.OperationSummary, len(rows))
		for i, r := range rows {
			list[i] = operationSummary(r)
		}
		return err
	})
	return list, err
}

func operationSummary(o sqlc.ListOperationsRow) wire.OperationSummary {
	sum := wire.OperationSummary{
		OperationID: o.OperationID, NodeID: o.NodeID, Host: o.Host, WorkflowID: o.WorkflowID, RunID: o.RunID,
		Action: o.Action, OpSeq: o.OpSeq, Status: o.Status, Phase: o.Phase, WaitingOn: lifecycle.AttentionNone,
		Stuck: o.Stuck, Actor: o.Actor, Reason: o.Reason, CorrelationID: o.CorrelationID, Outcome: o.Outcome,
		StartedAt: o.StartedAt, EndedAt: o.EndedAt,
	}
	if o.Stuck != nil {
		sum.WaitingOn = o.Stuck.WaitingOn
	}
	return sum
}
