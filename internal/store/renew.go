package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// ClaimRenewal lets an authenticated caller have its next certificate, as
// nodeapi.Store says. A newer key takes the place of one that asked before it
// and was never used: the node may have lost that one.
func (s *Store) ClaimRenewal(ctx context.Context, c nodeapi.RenewClaim) (nodeapi.ClaimResult, error) {
	var claimed nodeapi.ClaimResult
	err := s.write(ctx, "claiming a renewal of node "+c.Caller.NodeID, func(ctx context.Context, u *unit) (err error) {
		claimed, err = u.claimRenewal(ctx, c)
		return err
	})
	return claimed, err
}

func (u *unit) claimRenewal(ctx context.Context, c nodeapi.RenewClaim) (nodeapi.ClaimResult, error) {
	none, nodeID := nodeapi.ClaimResult{}, c.Caller.NodeID
	node, err := u.lockNode(ctx, nodeID)
	if err != nil {
		return none, err
	}
	e := audit.Event{Stream: nodeID, Actor: nodeActor(nodeID), Action: audit.RenewalClaimed, Target: nodeID,
		Result: audit.Succeeded, CorrelationID: c.CorrelationID, Detail: map[string]string{
			"serial": c.Caller.Serial, "spki": c.SPKI, "sequence": strconv.FormatInt(c.Sequence, 10)}}
	if err := admitRenewal(c, node); err != nil {
		return none, refuse(err, e)
	}
	first, err := u.ClaimRenewal(ctx, sqlc.ClaimRenewalParams{SPKI: c.SPKI, NodeID: nodeID, Serial: c.Caller.Serial,
		Sequence: c.Sequence})
	if notFound(err) {
		return none, u.explainRenewal(ctx, c, e)
	}
	if err != nil {
		return none, err
	}
	if err := u.bindKey(ctx, c.SPKI, nodeID); err != nil {
		return none, refuse(err, e) // which undoes the claim
	}
	if first {
		u.note(e)
	}
	return nodeapi.ClaimResult{NodeID: nodeID, Incarnation: node.Incarnation, Recoverable: len(node.RecoveryKey) > 0}, nil
}

// admitRenewal says whether the node may renew as it is.
func admitRenewal(c nodeapi.RenewClaim, n sqlc.LockNodeRow) error {
	switch {
	case n.State.Refusing():
		return errRemoved()
	case n.Incarnation != c.Caller.Incarnation:
		return errIdentity(schema.ReasonIdentityMismatch, "the renewal is of another incarnation of the node")
	case n.Locked:
		return errLocked(n.Host)
	case c.SPKI == "":
		return schema.NewError(schema.KindInvalidRequest, "a renewal needs a key").WithReason("key_missing")
	}
	return nil
}

// explainRenewal says why the conditional update found nothing to renew. A
// caller whose certificate was replaced between its check and here was on its
// way, which is no alarm; one that holds the current certificate and is behind
// it is a copy.
func (u *unit) explainRenewal(ctx context.Context, c nodeapi.RenewClaim, e audit.Event) error {
	current, err := u.CurrentCertificate(ctx, c.Caller.NodeID)
	if notFound(err) || err == nil && current.Serial != c.Caller.Serial {
		return refuse(errSuperseded(), e)
	}
	if err != nil {
		return err
	}
	e.Detail["current_serial"] = current.Serial
	e.Detail["current_sequence"] = strconv.FormatInt(current.Sequence, 10)
	return refuseClone(clone{c.Caller.NodeID, c.Caller.Incarnation, cloneOfSequence}, e)
}

// CertificateAges returns how long the current certificates still last, those
// that end first before the others, for the gauges of renewal.
func (s *Store) CertificateAges(ctx context.Context) ([]metrics.CertificateAge, error) {
	var ages []metrics.CertificateAge
	err := s.read(ctx, "reading the ages of certificates", func(ctx context.Context) error {
		rows, err := s.q.CertificateAges(ctx)
		ages = make([]metrics.CertificateAge, len(rows))
		for i, r := range rows {
			ages[i] = metrics.CertificateAge{NodeID: r.NodeID, Left: seconds(r.SecondsLeft),
				Life: seconds(r.SecondsLife), SinceRenewal: seconds(r.SecondsSinceRenewal)}
		}
		return err
	})
	return ages, err
}

// Unpromoted returns the certificates that have waited for their first use for
// longer than olderThan, oldest first.
func (s *Store) Unpromoted(ctx context.Context, olderThan time.Duration) ([]metrics.UnpromotedCertificate, error) {
	var waiting []metrics.UnpromotedCertificate
	err := s.read(ctx, "looking for unused certificates", func(ctx context.Context) error {
		rows, err := s.q.Unpromoted(ctx, olderThan.Seconds())
		waiting = make([]metrics.UnpromotedCertificate, len(rows))
		for i, r := range rows {
			waiting[i] = metrics.UnpromotedCertificate(r)
		}
		return err
	})
	return waiting, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
