package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// IssueFetch stores a one-time reference to a bundle of the token's purpose and
// voids the node's older one, as adminapi.EnrollmentTokens specifies.
func (s *Identities) IssueFetch(ctx context.Context, t trust.MintedToken, by audit.Subject) error {
	return s.db.write(ctx, "issuing a fetch reference for node "+t.NodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, t.NodeID)
		if err != nil {
			return err
		}
		e := subjectEvent(by, t.NodeID, audit.FetchIssued, t.NodeID,
			map[string]string{"token_id": t.TokenID, "bundle": string(t.Purpose)})
		if err := admitToken(ctx, tx, t.Purpose, node); err != nil {
			return refuse(err, e)
		}
		if _, err := tx.VoidTokens(ctx, t.NodeID, purposes(purposeFetch)); err != nil {
			return err
		}
		tx.note(e)
		if err := tx.InsertToken(ctx, sqlc.InsertTokenParams{TokenID: t.TokenID, NodeID: t.NodeID, Incarnation: node.Incarnation,
			Purpose: purposeFetch, BundlePurpose: &t.Purpose, SecretHash: t.Hash, ExpiresAt: t.ExpiresAt}); err != nil {
			return err
		}
		// The operator has the reference now; the bundle may be created much later.
		return tx.signalEnrollment(ctx, t.NodeID, node.Incarnation, t.Purpose == trust.PurposeReissue, lifecycle.EventBundleIssued)
	})
}

// UseFetch spends a one-time reference, as adminapi.EnrollmentTokens specifies. A reference
// whose bundle the node's state does not allow stays unspent.
func (s *Identities) UseFetch(ctx context.Context, tokenID string, hash []byte, by audit.Subject,
) (nodeID string, purpose trust.TokenPurpose, err error) {
	used, err := write(ctx, s.unauthenticated, "using a fetch reference", func(ctx context.Context, tx *tx) (sqlc.UseFetchRow, error) {
		return useFetch(ctx, tx, tokenID, hash, by)
	})
	if err != nil {
		return "", "", err
	}
	return used.NodeID, *used.BundlePurpose, nil
}

func useFetch(ctx context.Context, tx *tx, tokenID string, hash []byte, by audit.Subject) (used sqlc.UseFetchRow, err error) {
	e := subjectEvent(by, "", audit.FetchUsed, "", map[string]string{"token_id": tokenID})
	_, node, err := findToken(ctx, tx, &e, tokenID, hash, purposeFetch)
	if err != nil {
		return used, err
	}
	used, err = tx.UseFetch(ctx, tokenID)
	if postgres.NotFound(err) {
		return used, explainToken(ctx, tx, tokenID, "", node, e)
	}
	if err != nil {
		return used, err
	}
	e.Detail["bundle"] = string(*used.BundlePurpose)
	if err := admitToken(ctx, tx, *used.BundlePurpose, node); err != nil {
		return used, refuseNode(err, e) // rolls back: the reference stays unspent
	}
	tx.note(e)
	return used, nil
}
