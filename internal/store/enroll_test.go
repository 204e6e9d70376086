package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestEnrollment(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	progress := func() activities.Enrollment {
		p, err := e.Enrollment(ctx, n.ID)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, activities.Enrollment{Incarnation: 1}, progress())

	e.claim(n.ID, lifecycle.ActionEnroll)
	tokenID, hash := e.token(n.ID)
	require.Equal(t, activities.Enrollment{Incarnation: 1, BundleIssued: true}, progress())
	require.Equal(t, lifecycle.NodeBootstrapIssued, e.node(n.ID).State)

	won, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, "spki-1"))
	require.NoError(t, err)
	require.Equal(t, nodeapi.ClaimResult{TokenID: tokenID, NodeID: n.ID, Incarnation: 1, Now: won.Now}, won)
	require.Equal(t, lifecycle.NodeEnrolling, e.node(n.ID).State)
	require.Equal(t, activities.Enrollment{Incarnation: 1, BundleIssued: true, TokenClaimed: true}, progress())

	rows := e.changes(n.ID, func() {
		again, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, "spki-1"))
		require.NoError(t, err)
		again.Now = won.Now
		require.Equal(t, won, again, "the same key may retry: its answer may have been lost")
	})
	require.Empty(t, rows)

	id, first := certificate(n.ID, 1, "spki-1")
	_, second := certificate(n.ID, 1, "spki-1")
	require.NoError(t, e.storePending(n.ID, 1, tokenID, first))
	require.NoError(t, e.storePending(n.ID, 1, tokenID, second))
	require.NoError(t, e.storePending(n.ID, 1, tokenID, second), "storing it again is a no-op")
	_, err = e.Authenticate(ctx, id, first)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)

	caller, err := e.Authenticate(ctx, id, second)
	require.NoError(t, err)
	require.False(t, caller.HasPolled)
	require.NoError(t, e.RecordPoll(ctx, caller, wire.PollRequest{}))
	require.NoError(t, e.RecordPoll(ctx, caller, wire.PollRequest{}))
	require.Equal(t, activities.Enrollment{Incarnation: 1, BundleIssued: true, TokenClaimed: true, Polled: true}, progress())
	caller, err = e.Authenticate(ctx, id, second)
	require.NoError(t, err)
	require.True(t, caller.HasPolled)
	require.Equal(t, second, *e.node(n.ID).Identity)

	require.Equal(t, []string{"nodes.register succeeded", "nodes.enroll accepted RMA-4411", "nodes.token_issued succeeded", "nodes.token_claimed succeeded",
		"nodes.certificate_issued succeeded", "nodes.certificate_issued succeeded",
		"nodes.identity_refused refused serial_superseded", "nodes.certificate_promoted succeeded"}, e.audit(n.ID))
	require.Equal(t, []lifecycle.AgentEventName{lifecycle.EventBundleIssued, lifecycle.EventTokenClaimed, lifecycle.EventFirstPoll}, e.events(n.ID))
}

// events takes the outbox's events of a node.
func (e *env) events(nodeID string) []lifecycle.AgentEventName {
	e.t.Helper()
	messages, err := e.outbox().Take(e.t.Context(), 100, nil)
	require.NoError(e.t, err)
	var names []lifecycle.AgentEventName
	for _, m := range messages {
		require.Equal(e.t, lifecycle.NodeWorkflowID(e.node(nodeID).Host, nodeID), m.WorkflowID)
		require.Equal(e.t, nodeID, m.Event.NodeID)
		require.Equal(e.t, int64(1), m.Event.Incarnation)
		require.Nil(e.t, m.Result)
		require.WithinDuration(e.t, time.Now(), m.CreatedAt, time.Minute)
		names = append(names, m.Event.Event)
	}
	return names
}

func TestRefusedTokensChangeNothing(t *testing.T) { //nolint:tparallel // the cases follow each other in one database
	e := setup(t)
	ctx := t.Context()
	refused := func(t *testing.T, c nodeapi.TokenClaim, stream string, kind schema.Kind, reason string, alarm ...string) (next string) {
		t.Helper()
		type state struct {
			nodes  []wire.NodeView
			tokens int64
		}
		look := func() (s state) {
			s.nodes = e.nodes()
			for i := range s.nodes {
				s.nodes[i].IdentityAlarm = nil
			}
			s.tokens = e.number("SELECT count(*) FROM enrollment_tokens WHERE state = 'issued'")
			return s
		}
		before := look()
		events, want := e.number("SELECT count(*) FROM audit_events"), int64(0)
		for range 2 { // the second refusal of a minute is not audited again
			_, err := e.ClaimToken(ctx, c)
			requireKind(t, err, kind, reason)
			next = schema.AsError(err).Next
		}
		if stream != unaudited {
			rows := e.audit(stream)
			want = 1 + int64(len(alarm))
			require.Contains(t, rows[len(rows)-int(want):], "nodes.token_refused refused "+reason)
		}
		require.Equal(t, want, e.number("SELECT count(*) FROM audit_events")-events)
		require.Equal(t, before, look())
		return next
	}

	a, b := e.register(), e.register()
	idA, hashA := e.token(a.ID)
	wrong := make([]byte, len(hashA))

	t.Run("unknown", func(t *testing.T) {
		refused(t, tokenClaim(a.ID, schema.NewID(), hashA, "spki"), unaudited, schema.KindUnauthenticated, "token_unknown")
		refused(t, tokenClaim(a.ID, "nonsense", hashA, "spki"), unaudited, schema.KindUnauthenticated, "token_unknown")
		refused(t, tokenClaim("nonsense", schema.NewID(), nil, "spki"), unaudited, schema.KindUnauthenticated, "token_unknown")
	})
	t.Run("wrong secret", func(t *testing.T) {
		refused(t, tokenClaim(a.ID, idA, wrong, "spki"), unaudited, schema.KindUnauthenticated, "token_unknown")
		refused(t, tokenClaim(a.ID, idA, nil, "spki"), unaudited, schema.KindUnauthenticated, "token_unknown")
		refused(t, tokenClaim(a.ID, idA, hashA[:31], "spki"), unaudited, schema.KindUnauthenticated, "token_unknown")
	})
	t.Run("no key", func(t *testing.T) {
		refused(t, tokenClaim(a.ID, idA, hashA, ""), unaudited, schema.KindUnauthenticated, "token_unknown")
	})
	t.Run("foreign", func(t *testing.T) {
		refused(t, tokenClaim(b.ID, idA, hashA, "spki"), a.ID, schema.KindUnauthenticated, "token_foreign")
		_, err := e.ClaimToken(ctx, tokenClaim(a.ID, idA, hashA, "spki-a"))
		require.NoError(t, err, "presented at the wrong path, it stays usable at the right one")
	})
	t.Run("replayed with another key", func(t *testing.T) {
		refused(t, tokenClaim(a.ID, idA, hashA, "spki-b"), a.ID, schema.KindTokenConsumed, "token_claimed", trust.AlarmToken)
	})
	t.Run("expired", func(t *testing.T) {
		n := e.register()
		id, hash := e.token(n.ID)
		e.exec("UPDATE enrollment_tokens SET expires_at = now() WHERE token_id = $1", id)
		next := refused(t, tokenClaim(n.ID, id, hash, "spki"), n.ID, schema.KindTokenExpired, "token_expired")
		require.Equal(t, "gpuaas node enroll "+n.Host, next)
	})
	t.Run("replaced", func(t *testing.T) {
		n := e.register()
		id, hash := e.token(n.ID)
		e.token(n.ID)
		refused(t, tokenClaim(n.ID, id, hash, "spki"), n.ID, schema.KindTokenConsumed, "token_voided")
	})
	t.Run("used", func(t *testing.T) {
		caller, _, _ := e.enroll()
		e.exec("UPDATE enrollment_tokens SET secret_hash = $2, expires_at = now() WHERE node_id = $1 AND purpose = 'enroll'", caller.NodeID, hashA)
		var id string
		require.NoError(t, e.raw.QueryRow(ctx, "SELECT token_id::text FROM enrollment_tokens WHERE node_id = $1 AND purpose = 'enroll'", caller.NodeID).Scan(&id))
		next := refused(t, tokenClaim(caller.NodeID, id, hashA, "spki-1"), caller.NodeID, schema.KindTokenConsumed, "token_used", trust.AlarmToken)
		require.Equal(t, "gpuaas node reissue-enrollment "+e.node(caller.NodeID).Host, next, "an active node is not enrolled again")
	})
	t.Run("removed node", func(t *testing.T) {
		n := e.register()
		id, hash := e.token(n.ID)
		e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", n.ID)
		refused(t, tokenClaim(n.ID, id, hash, "spki"), n.ID, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	})
	t.Run("a state that does not enroll", func(t *testing.T) {
		n := e.register()
		id, hash := e.token(n.ID)
		e.exec("UPDATE nodes SET state = 'retired' WHERE node_id = $1", n.ID)
		refused(t, tokenClaim(n.ID, id, hash, "spki"), n.ID, schema.KindInvalidRequest, "invalid_state")
	})
}

func TestOneKeyWinsAToken(t *testing.T) {
	e := setup(t)
	n := e.register()
	tokenID, hash := e.token(n.ID)
	won := 0
	for _, err := range race(100, func(i int) error {
		_, err := e.ClaimToken(t.Context(), tokenClaim(n.ID, tokenID, hash, fmt.Sprintf("spki-%d", i)))
		return err
	}) {
		if err == nil {
			won++
			continue
		}
		requireKind(t, err, schema.KindTokenConsumed, "token_claimed")
	}
	require.Equal(t, 1, won)
	rows := e.audit(n.ID)
	require.Equal(t, 1, count(rows, "nodes.token_claimed succeeded"))
	require.Equal(t, 1, count(rows, "nodes.token_refused refused token_claimed"), "once a minute")
}

func TestIssueToken(t *testing.T) { //nolint:tparallel // the cases follow each other in one database
	e := setup(t)
	ctx := t.Context()
	mint := func(nodeID string) trust.MintedToken { return mint(nodeID, trust.PurposeEnroll) }

	t.Run("only in a state that enrolls", func(t *testing.T) {
		for _, s := range lifecycle.NodeStates() {
			n := e.inState(s)
			_, refusal := lifecycle.CheckStart(lifecycle.ActionEnroll, s)
			err := e.IssueToken(ctx, mint(n.ID), operator)
			if refusal == nil {
				require.NoError(t, err)
				require.Equal(t, lifecycle.NodeBootstrapIssued, e.node(n.ID).State)
				continue
			}
			requireKind(t, err, schema.KindInvalidRequest, "invalid_state")
			require.Equal(t, s, e.node(n.ID).State)
			require.Contains(t, e.audit(n.ID), "nodes.token_issued refused invalid_state")
		}
		requireKind(t, e.IssueToken(ctx, mint(schema.NewID()), operator), schema.KindNotFound, "")
	})
	t.Run("one live token per node, raced", func(t *testing.T) {
		n := e.register()
		for _, err := range race(20, func(int) error { return e.IssueToken(ctx, mint(n.ID), operator) }) {
			require.NoError(t, err)
		}
		require.Equal(t, int64(1), e.number("SELECT count(*) FROM enrollment_tokens WHERE node_id = $1 AND state = 'issued'", n.ID))
	})
	t.Run("voids an unused certificate", func(t *testing.T) {
		n := e.register()
		tokenID, hash := e.token(n.ID)
		_, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, key(n.ID, 1)))
		require.NoError(t, err)
		id, cert := certificate(n.ID, 1, key(n.ID, 1))
		require.NoError(t, e.storePending(n.ID, 1, tokenID, cert))
		e.token(n.ID)
		_, err = e.Authenticate(ctx, id, cert)
		requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
		_, late := certificate(n.ID, 1, key(n.ID, 1))
		requireKind(t, e.storePending(n.ID, 1, tokenID, late), schema.KindTokenConsumed, "token_voided")
	})
	t.Run("begins a new incarnation when the identity was used", func(t *testing.T) {
		n := e.register()
		tokenID, hash := e.token(n.ID)
		_, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, key(n.ID, 1)))
		require.NoError(t, err)
		id, cert := certificate(n.ID, 1, key(n.ID, 1))
		require.NoError(t, e.storePending(n.ID, 1, tokenID, cert))
		caller, err := e.Authenticate(ctx, id, cert)
		require.NoError(t, err)
		require.NoError(t, e.RecordPoll(ctx, caller, wire.PollRequest{}))

		tokenID, hash = e.token(n.ID)
		progress, err := e.Enrollment(ctx, n.ID)
		require.NoError(t, err)
		require.Equal(t, activities.Enrollment{Incarnation: 2, BundleIssued: true}, progress)
		_, err = e.Authenticate(ctx, id, cert)
		requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
		requireKind(t, e.heartbeat(caller, wire.Heartbeat{}), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
		won, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, key(n.ID, 2)))
		require.NoError(t, err)
		require.Equal(t, int64(2), won.Incarnation)
		requireKind(t, e.storePending(n.ID, 1, tokenID, cert), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	})
	t.Run("keeps the hash only", func(t *testing.T) {
		n := e.register()
		bad := mint(n.ID)
		bad.Hash = []byte("the secret itself")
		requireKind(t, e.IssueToken(ctx, bad, operator), schema.KindInvalidRequest, "enrollment_tokens_hash_check")
	})
}

func TestStorePendingOfARemovedNode(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeRemoved)
	_, cert := certificate(n.ID, 1, "spki")
	requireKind(t, e.storePending(n.ID, 1, "", cert), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	requireKind(t, e.storePending(schema.NewID(), 1, "", cert), schema.KindNotFound, "")
}
