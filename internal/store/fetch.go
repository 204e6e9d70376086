package store

import (
	"context"
	"crypto/subtle"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// IssueFetch stores a one-time reference to a bundle of the token's purpose and
// voids the node's older one, as adminapi.Store says.
func (s *Store) IssueFetch(ctx context.Context, t trust.MintedToken, by audit.Subject) error {
	return s.write(ctx, "issuing a fetch reference for node "+t.NodeID, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, t.NodeID)
		if err != nil {
			return err
		}
		e := audit.Event{Stream: t.NodeID, Actor: by.Actor, Action: audit.FetchIssued, Target: t.NodeID,
			Result: audit.Succeeded, CorrelationID: by.CorrelationID,
			Detail: map[string]string{"token_id": t.TokenID, "bundle": string(t.Purpose)}}
		if err := u.admitToken(ctx, t.Purpose, node); err != nil {
			return refuse(err, e)
		}
		if _, err := u.VoidTokens(ctx, t.NodeID, purposes(purposeFetch)); err != nil {
			return err
		}
		u.note(e)
		if err := u.InsertToken(ctx, sqlc.InsertTokenParams{TokenID: t.TokenID, NodeID: t.NodeID, Incarnation: node.Incarnation,
			Purpose: purposeFetch, BundlePurpose: &t.Purpose, SecretHash: t.Hash, ExpiresAt: t.ExpiresAt}); err != nil {
			return err
		}
		// What is handed out is the reference; its bundle may be made much later.
		return u.tellEnrolment(ctx, t.NodeID, node.Incarnation, t.Purpose == trust.PurposeReissue, lifecycle.EventBundleIssued)
	})
}

// UseFetch spends a one-time reference, as adminapi.Store says. One whose bundle
// cannot be made as the node is stays unspent.
func (s *Store) UseFetch(ctx context.Context, tokenID string, hash []byte, by audit.Subject,
) (nodeID string, purpose trust.TokenPurpose, err error) {
	err = s.write(ctx, "using a fetch reference", func(ctx context.Context, u *unit) error {
		e := audit.Event{Stream: audit.SystemStream, Actor: by.Actor, Action: audit.FetchUsed,
			Target: tokenID, Result: audit.Succeeded, CorrelationID: by.CorrelationID,
			Detail: map[string]string{"token_id": tokenID}}
		nodeID, purpose, err = u.useFetch(ctx, tokenID, hash, &e)
		if err == nil {
			u.note(e)
		}
		return err
	})
	if err != nil {
		return "", "", err
	}
	return nodeID, purpose, nil
}

func (u *unit) useFetch(ctx context.Context, tokenID string, hash []byte, e *audit.Event) (string, trust.TokenPurpose, error) {
	if !schema.IsID(tokenID) {
		return "", "", refuse(errUnknownToken(), *e)
	}
	t, err := u.GetToken(ctx, tokenID)
	if notFound(err) {
		return "", "", refuse(errUnknownToken(), *e)
	}
	if err != nil {
		return "", "", err
	}
	e.Stream, e.Target = t.NodeID, t.NodeID
	node, err := u.lockNode(ctx, t.NodeID)
	switch {
	case err != nil:
		return "", "", err
	case subtle.ConstantTimeCompare(t.SecretHash, hash) != 1 || t.Purpose != purposeFetch:
		return "", "", refuse(errUnknownToken(), *e)
	case node.State.Refusing():
		return "", "", refuse(errRemoved(), *e)
	}
	used, err := u.UseFetch(ctx, tokenID)
	if notFound(err) {
		return "", "", u.explainToken(ctx, tokenID, "", node, *e)
	}
	if err != nil {
		return "", "", err
	}
	e.Detail["bundle"] = string(*used.BundlePurpose)
	if err := u.admitToken(ctx, *used.BundlePurpose, node); err != nil {
		return "", "", refuse(err, *e) // which leaves the reference unspent
	}
	return used.NodeID, *used.BundlePurpose, nil
}
