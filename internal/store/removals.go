package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// DueRemovals returns up to limit removals to sign, as trust.Removal specifies: of nodes
// whose removal completed and has no document, or one that ends before renewBefore and
// that the node asked for during the last hour. The documents have neither an environment
// nor times.
func (s *Identities) DueRemovals(ctx context.Context, renewBefore time.Time, limit int) ([]trust.Removal, error) {
	rows, err := query(ctx, s.db, "reading the removals to sign", func(ctx context.Context) ([]sqlc.DueRemovalsRow, error) {
		return s.db.q.DueRemovals(ctx, renewBefore, int32(limit))
	})
	return convert(rows, func(r sqlc.DueRemovalsRow) trust.Removal {
		return trust.Removal{NodeID: r.NodeID, Incarnation: r.Incarnation, OperationID: r.OperationID}
	}), err
}

// PutRemoval stores the signed document of a removal. It stores nothing if the node is no
// longer removed or has another incarnation.
func (s *Identities) PutRemoval(ctx context.Context, r trust.Removal, document []byte) error {
	return s.db.Call(ctx, "storing the removal of node "+r.NodeID, func(ctx context.Context) error {
		_, err := s.db.q.PutRemoval(ctx, sqlc.PutRemovalParams{NodeID: r.NodeID, Incarnation: r.Incarnation, OperationID: r.OperationID,
			Document: document, ExpiresAt: r.ExpiresAt})
		return err
	})
}

// Removal implements nodeapi.Identities.
func (s *Identities) Removal(ctx context.Context, nodeID string) ([]byte, error) {
	if !schema.IsID(nodeID) {
		return nil, nil
	}
	return query(ctx, s.unauthenticated, "reading the removal of node "+nodeID, func(ctx context.Context) ([]byte, error) {
		document, err := s.unauthenticated.q.NodeRemoval(ctx, nodeID)
		if postgres.NotFound(err) {
			return nil, nil
		}
		return document, err
	})
}
