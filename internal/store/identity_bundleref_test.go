package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// fetcher asks with a reference.
var fetcher = audit.Subject{Actor: "fetch:192.0.2.1", CorrelationID: "corr"}

func TestFetchReferenceIsSpentOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	e.claim(n.ID, lifecycle.ActionEnroll)
	ref := mint(n.ID, trust.PurposeEnroll)
	require.NoError(t, e.IssueFetch(ctx, ref, operator))
	require.Equal(t, lifecycle.NodeRegistered, e.node(n.ID).State, "the bundle is made when it is fetched")
	progress := func() activities.Enrollment {
		p, err := e.Enrollment(ctx, n.ID)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, []string{"node bundle_issued 1"}, e.signals(n.ID), "the operator has the reference")
	require.Equal(t, activities.Enrollment{Incarnation: 1, BundleIssued: true}, progress())
	won := 0
	rows := e.changes(n.ID, func() {
		for _, err := range race(20, func(int) error {
			nodeID, purpose, err := e.UseFetch(ctx, ref.TokenID, ref.Hash, fetcher)
			if err == nil {
				require.Equal(t, n.ID, nodeID)
				require.Equal(t, trust.PurposeEnroll, purpose)
			}
			return err
		}) {
			if err == nil {
				won++
				continue
			}
			requireKind(t, err, schema.KindTokenConsumed, "token_used")
		}
	})
	require.Equal(t, 1, won)
	require.Equal(t, 1, count(rows, "nodes.fetch_reference_used succeeded"))
	require.Equal(t, 1, count(rows, "nodes.fetch_reference_used refused token_used"), "once a minute")
	trail, err := e.AuditStream(ctx, n.ID, 0, 100)
	require.NoError(t, err)
	require.Equal(t, fetcher.Actor, trail[len(trail)-1].Actor, "who came late is on record")
	require.Contains(t, e.audit(n.ID), "nodes.fetch_reference_issued succeeded")
	require.Equal(t, activities.Enrollment{Incarnation: 1}, progress())

	_, err = e.Claim(ctx, reissueRequest(n.ID))
	require.NoError(t, err)
	require.NoError(t, e.IssueFetch(ctx, mint(n.ID, trust.PurposeReissue), operator))
	require.Equal(t, []string{"node bundle_issued 1", "reissue bundle_issued 1"}, e.signals(n.ID))
	require.Equal(t, activities.Enrollment{Incarnation: 1, ReissueIssued: true}, progress())
}

func TestRefusedFetchReferences(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	refused := func(ref trust.MintedToken, kind schema.Kind, reason string) (next string) {
		t.Helper()
		_, _, err := e.UseFetch(ctx, ref.TokenID, ref.Hash, fetcher)
		requireKind(t, err, kind, reason)
		return schema.AsError(err).Next
	}
	ref := mint(n.ID, trust.PurposeReissue)
	refused(ref, schema.KindUnauthenticated, "token_unknown")
	require.NoError(t, e.IssueFetch(ctx, ref, operator))
	wrong := ref
	wrong.Hash = make([]byte, 32)
	refused(wrong, schema.KindUnauthenticated, "token_unknown")
	refused(trust.MintedToken{TokenID: "nonsense"}, schema.KindUnauthenticated, "token_unknown")
	_, err := e.ClaimToken(ctx, tokenClaim(n.ID, ref.TokenID, ref.Hash, key(n.ID, 1)))
	requireKind(t, err, schema.KindUnauthenticated, "token_unknown")
	id, hash := e.token(e.register().ID)
	refused(trust.MintedToken{TokenID: id, Hash: hash}, schema.KindUnauthenticated, "token_unknown")

	e.exec("UPDATE nodes SET state = 'draining' WHERE node_id = $1", n.ID)
	refused(ref, schema.KindInvalidRequest, "invalid_state")
	require.Equal(t, "issued", e.tokenStateOf(ref.TokenID), "it is good again after the drain")
	e.exec("UPDATE nodes SET state = 'registered' WHERE node_id = $1", n.ID)

	newer := mint(n.ID, trust.PurposeReissue)
	require.NoError(t, e.IssueFetch(ctx, newer, operator))
	refused(ref, schema.KindTokenConsumed, "token_voided")
	e.exec("UPDATE enrollment_tokens SET expires_at = now() WHERE token_id = $1", newer.TokenID)
	require.Equal(t, "gpuaas node bootstrap-script "+n.Host, refused(newer, schema.KindTokenExpired, "token_expired"))
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", n.ID)
	refused(newer, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)

	requireKind(t, e.IssueFetch(ctx, mint(e.inState(lifecycle.NodeActive).ID, trust.PurposeEnroll), operator),
		schema.KindInvalidRequest, "invalid_state")
	requireKind(t, e.IssueFetch(ctx, mint(e.register().ID, trust.PurposeRecover), operator), schema.KindInvalidRequest, "token_purpose")
	requireKind(t, e.IssueFetch(ctx, mint(schema.NewID(), trust.PurposeEnroll), operator), schema.KindNotFound, "")
}
