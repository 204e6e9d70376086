package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
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
		_, _, checked := e.CheckFetch(ctx, ref.TokenID, ref.Hash, fetcher)
		requireKind(t, checked, kind, reason)
		require.Equal(t, schema.AsError(err).Body(""), schema.AsError(checked).Body(""), "a check answers as the use does")
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

func TestCheckedReferenceIsNotSpent(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	e.claim(n.ID, lifecycle.ActionEnroll)
	ref := mint(n.ID, trust.PurposeEnroll)
	require.NoError(t, e.IssueFetch(ctx, ref, operator))
	rows := e.changes(n.ID, func() {
		for range 3 {
			nodeID, expires, err := e.CheckFetch(ctx, ref.TokenID, ref.Hash, fetcher)
			require.NoError(t, err)
			require.Equal(t, n.ID, nodeID)
			require.WithinDuration(t, ref.ExpiresAt, expires, time.Millisecond)
		}
	})
	require.Empty(t, rows, "a client that has a reference cannot fill the trail")
	_, _, err := e.UseFetch(ctx, ref.TokenID, ref.Hash, fetcher)
	require.NoError(t, err)
	rows = e.changes(n.ID, func() {
		_, _, err = e.CheckFetch(ctx, ref.TokenID, ref.Hash, fetcher)
		requireKind(t, err, schema.KindTokenConsumed, "token_used")
	})
	require.Equal(t, []string{"nodes.fetch_reference_used refused token_used"}, rows)
}

// TestBootReferences: of several tries of an operation that create its machine at once, one gets
// a reference. The others do not void it until the first try must have ended.
func TestBootReferences(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
	older := mint(n.ID, trust.PurposeEnroll)
	require.NoError(t, e.IssueFetch(ctx, older, operator))
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	refs := make([]trust.MintedToken, 8)
	var won []trust.MintedToken
	for i, err := range race(len(refs), func(i int) error {
		refs[i] = mint(n.ID, trust.PurposeEnroll)
		return e.IssueBoot(ctx, refs[i], f, time.Hour)
	}) {
		if err == nil {
			won = append(won, refs[i])
			continue
		}
		requireKind(t, err, schema.KindServiceUnavailable, machines.ReasonStarting)
	}
	require.Len(t, won, 1)
	require.Equal(t, "issued", e.tokenStateOf(won[0].TokenID))
	require.Equal(t, "voided", e.tokenStateOf(older.TokenID), "a reference from before the operation")
	trail := e.chain(n.ID)
	last := trail[len(trail)-1]
	require.Equal(t, []string{audit.FetchIssued, audit.Succeeded, f.OperationID, f.Actor, f.CorrelationID, won[0].TokenID},
		[]string{last.Action, last.Result, last.OperationID, last.Actor, last.CorrelationID, last.Detail["token_id"]})

	next := mint(n.ID, trust.PurposeEnroll)
	require.NoError(t, e.IssueBoot(ctx, next, f, 0), "the first try has ended")
	require.Equal(t, "voided", e.tokenStateOf(won[0].TokenID))
	_, _, err := e.UseFetch(ctx, next.TokenID, next.Hash, fetcher)
	require.NoError(t, err)
	newest := mint(n.ID, trust.PurposeEnroll)
	require.NoError(t, e.IssueBoot(ctx, newest, f, time.Hour), "a used reference is not live")

	other := f
	other.OpSeq++
	requireKind(t, e.IssueBoot(ctx, mint(n.ID, trust.PurposeEnroll), other, 0), schema.KindFenced, "")
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeRegistered}))
	requireKind(t, e.IssueBoot(ctx, mint(n.ID, trust.PurposeEnroll), f, 0), schema.KindFenced, lifecycle.ReasonOperationOver)
}
