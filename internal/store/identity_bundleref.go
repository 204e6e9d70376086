package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
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
		return issueFetch(ctx, tx, t, node, subjectEvent(by, t.NodeID, audit.FetchIssued, t.NodeID, fetchDetail(t)))
	})
}

func fetchDetail(t trust.MintedToken) map[string]string {
	return map[string]string{"token_id": t.TokenID, "bundle": string(t.Purpose)}
}

// issueFetch stores a reference and voids the node's older one: a node has one live reference.
func issueFetch(ctx context.Context, tx *tx, t trust.MintedToken, node sqlc.LockNodeRow, e audit.Event) error {
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
	// The operator, or the worker, has the reference now; the bundle may be created much later.
	return tx.signalEnrollment(ctx, t.NodeID, node.Incarnation, t.Purpose == trust.PurposeReissue, lifecycle.EventBundleIssued)
}

// IssueBoot implements boot.Tokens. The lock of the node serializes the tries.
func (s *Identities) IssueBoot(ctx context.Context, t trust.MintedToken, f activities.Fence, hold time.Duration) error {
	return s.db.write(ctx, "issuing a boot reference for node "+f.NodeID, func(ctx context.Context, tx *tx) error {
		op, err := tx.lockHeld(ctx, f)
		switch {
		case err != nil:
			return err
		case op.EndedAt != nil:
			return errOperationEnded(f)
		case lifecycle.IsUndo(op.Phase):
			return errUndoBegan(f)
		}
		node, err := tx.lockNode(ctx, f.NodeID)
		if err != nil {
			return err
		}
		recent, err := tx.RecentFetch(ctx, f.OperationID, hold.Seconds())
		if err != nil {
			return err
		}
		if recent {
			return machine.Errorf(machine.ReasonStarting, "another try of operation %s has issued a reference for the machine of %s less than %s ago, and may still create the machine",
				f.OperationID, node.Host, hold)
		}
		return issueFetch(ctx, tx, t, node, operationEvent(f, audit.FetchIssued, audit.Succeeded, "", fetchDetail(t)))
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
	if used, err = tx.UseFetch(ctx, tokenID); err != nil {
		return used, noFetch(ctx, tx, tokenID, err, node, e)
	}
	// A refusal rolls back: the reference stays unspent.
	if err := admitFetch(ctx, tx, *used.BundlePurpose, node, e); err != nil {
		return used, err
	}
	tx.note(e)
	return used, nil
}

// CheckFetch implements adminapi.EnrollmentTokens.
func (s *Identities) CheckFetch(ctx context.Context, tokenID string, hash []byte, by audit.Subject,
) (nodeID string, expires time.Time, err error) {
	live, err := write(ctx, s.unauthenticated, "checking a fetch reference", func(ctx context.Context, tx *tx) (live sqlc.LiveFetchRow, err error) {
		e := subjectEvent(by, "", audit.FetchUsed, "", map[string]string{"token_id": tokenID})
		_, node, err := findToken(ctx, tx, &e, tokenID, hash, purposeFetch)
		if err != nil {
			return live, err
		}
		if live, err = tx.LiveFetch(ctx, tokenID); err != nil {
			return live, noFetch(ctx, tx, tokenID, err, node, e)
		}
		return live, admitFetch(ctx, tx, *live.BundlePurpose, node, e)
	})
	return live.NodeID, live.ExpiresAt, err
}

// noFetch is the refusal of a reference that the query for a live one did not find, and otherwise
// the error of the query.
func noFetch(ctx context.Context, tx *tx, tokenID string, err error, node sqlc.LockNodeRow, e audit.Event) error {
	if postgres.NotFound(err) {
		return explainToken(ctx, tx, tokenID, "", node, e)
	}
	return err
}

// admitFetch checks that the node's state allows the bundle of a reference, and adds its purpose to
// the event.
func admitFetch(ctx context.Context, tx *tx, bundle trust.TokenPurpose, node sqlc.LockNodeRow, e audit.Event) error {
	e.Detail["bundle"] = string(bundle)
	return refuseNode(admitToken(ctx, tx, bundle, node), e)
}
