package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// adoptNewer makes a certificate the node's current one that the database does not have, in a
// restore mode. The caller verified its chain, its dates and that it names the node. Its
// incarnation must not be lower than the one on record, and it must be issued after the
// current certificate. The certificates that it replaces prove no clone. adopted is false, and
// nothing changes, if one of these does not hold or the restore mode is not on.
func adoptNewer(ctx context.Context, db *db, id trust.Identity, cert trust.CertFacts) (adopted bool, err error) {
	return write(ctx, db, "adopting the certificate of node "+id.NodeID, func(ctx context.Context, tx *tx) (bool, error) {
		on, err := tx.restoring(ctx)
		if err != nil || !on {
			return false, err
		}
		node, err := tx.lockNode(ctx, id.NodeID)
		switch {
		case schema.KindOf(err) == schema.KindNotFound:
			return false, nil
		case err != nil:
			return false, err
		case node.State.Refusing() || node.Locked || id.Incarnation < node.Incarnation:
			return false, nil
		}
		newest, err := isNewest(ctx, tx, id, cert)
		if err != nil || !newest {
			return false, err
		}
		return true, adopt(ctx, tx, node, id, cert)
	})
}

// isNewest reports whether the certificate is unknown and was issued after the node's
// current one, if both are of one incarnation.
func isNewest(ctx context.Context, tx *tx, id trust.Identity, cert trust.CertFacts) (bool, error) {
	if _, err := tx.GetCertificate(ctx, id.NodeID, cert.Serial); !postgres.NotFound(err) {
		return false, err
	}
	current, err := tx.CurrentNotBefore(ctx, id.NodeID)
	if postgres.NotFound(err) {
		return true, nil
	}
	return current.Incarnation < id.Incarnation || cert.NotBefore.After(current.NotBefore), err
}

func adopt(ctx context.Context, tx *tx, n sqlc.LockNodeRow, id trust.Identity, cert trust.CertFacts) error {
	e := nodeEvent(id.NodeID, audit.IdentityAdopted, audit.Succeeded, map[string]string{"serial": cert.Serial, "spki": cert.SPKI,
		"not_before": cert.NotBefore.UTC().Format(time.RFC3339), "incarnation": strconv.FormatInt(id.Incarnation, 10),
		"incarnation_on_record": strconv.FormatInt(n.Incarnation, 10)})
	bound, err := tx.BindKey(ctx, cert.SPKI, id.NodeID)
	if err != nil {
		return err
	}
	if bound == 0 {
		return refuse(errForeignKey(), e)
	}
	if err := tx.ReplaceCertificates(ctx, id.NodeID); err != nil {
		return err
	}
	if err := tx.AdoptIncarnation(ctx, id.Incarnation, id.NodeID); err != nil {
		return err
	}
	if err := tx.AdoptCertificate(ctx, sqlc.AdoptCertificateParams{NodeID: id.NodeID, Serial: cert.Serial, Incarnation: id.Incarnation,
		Subject: cert.Subject, URI: cert.URI, Issuer: cert.Issuer, Fingerprint: cert.Fingerprint, SPKI: cert.SPKI,
		NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}); err != nil {
		return err
	}
	tx.note(e)
	open, err := tx.OpenOperations(ctx, id.NodeID)
	if err != nil || len(open) > 0 || n.State.Enrolled() {
		return err // the end of the operation sets the state
	}
	return tx.moveNode(ctx, n, lifecycle.NodeActive)
}

// restoreToken stores a recovery token that the database does not have, in a restore mode.
// The caller verified the request's signature by the recovery key on record.
func restoreToken(ctx context.Context, tx *tx, c nodeapi.RecoveryClaim) error {
	on, err := tx.restoring(ctx)
	if err != nil || !on || !schema.IsID(c.TokenID) || len(c.Hash) == 0 {
		return err
	}
	if _, err := tx.GetToken(ctx, c.TokenID); !postgres.NotFound(err) {
		return err
	}
	n, err := tx.lockNode(ctx, c.NodeID)
	if err != nil || n.State.Refusing() || n.Locked || n.Incarnation != c.Incarnation || len(n.RecoveryKey) == 0 {
		return orMissing(err, nil)
	}
	return tx.insertToken(ctx, trust.MintedToken{TokenID: c.TokenID, NodeID: c.NodeID, Purpose: trust.PurposeRecover, Hash: c.Hash,
		ExpiresAt: n.Now.Add(restoredTokenTTL)}, n.Incarnation)
}

// restoredTokenTTL is how long a restored recovery token may be claimed.
const restoredTokenTTL = time.Hour
