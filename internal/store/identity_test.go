package store_test

import (
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestFirstUsePromotesOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	old, renewed := m.held(), m.renewed(m.k(2))

	m.use() // until the new certificate is used the old one counts
	rows := e.changes(m.caller.NodeID, func() {
		for _, err := range race(20, func(int) error { _, err := e.Authenticate(ctx, renewed.id, renewed.cert); return err }) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"nodes.certificate_promoted succeeded"}, rows)
	m.refused(old, schema.ReasonSerialSuperseded)
	require.Equal(t, "consumed", e.tokenState(m.caller.NodeID))
	require.Equal(t, int64(2), e.number("SELECT count(*) FROM node_certificates WHERE node_id = $1", m.caller.NodeID))
}

func (e *env) tokenState(nodeID string) string {
	e.t.Helper()
	var s string
	require.NoError(e.t, e.raw.QueryRow(e.t.Context(), "SELECT state FROM enrollment_tokens WHERE node_id = $1 AND purpose = 'enroll'", nodeID).Scan(&s))
	return s
}

func TestRefusedIdentities(t *testing.T) { //nolint:tparallel // the cases follow each other in one database
	e := setup(t)
	ctx := t.Context()
	caller, id, cert := e.enroll()
	other, _, _ := e.enroll()
	change := func(f func(*trust.Identity, *trust.CertFacts)) (trust.Identity, trust.CertFacts) {
		i, c := id, cert
		f(&i, &c)
		return i, c
	}
	cases := map[string]struct {
		change func(*trust.Identity, *trust.CertFacts)
		stream string
		reason string
	}{
		"another serial": {func(_ *trust.Identity, c *trust.CertFacts) { c.Serial = "00" },
			caller.NodeID, schema.ReasonSerialSuperseded},
		"another incarnation": {func(i *trust.Identity, _ *trust.CertFacts) { i.Incarnation = 2 },
			caller.NodeID, schema.ReasonIdentityMismatch},
		"another node's certificate": {func(i *trust.Identity, _ *trust.CertFacts) { i.NodeID = other.NodeID },
			other.NodeID, schema.ReasonSerialSuperseded},
		"a serial used twice": {func(_ *trust.Identity, c *trust.CertFacts) { c.Fingerprint = "00" },
			caller.NodeID, schema.ReasonIdentityMismatch},
		"an unknown node": {func(i *trust.Identity, _ *trust.CertFacts) { i.NodeID = schema.NewID() },
			audit.SystemStream, schema.ReasonIdentityMismatch},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e.exec("DELETE FROM identity_refusals")
			i, facts := change(c.change)
			rows := e.changes(c.stream, func() {
				for _, err := range race(10, func(int) error { _, err := e.Authenticate(ctx, i, facts); return err }) {
					requireKind(t, err, schema.KindInvalidNodeIdentity, c.reason)
				}
			})
			require.Equal(t, []string{"nodes.identity_refused refused " + c.reason}, rows, "ten refusals, one row a minute")
			e.exec("UPDATE identity_refusals SET recorded_at = now() - interval '61 seconds'")
			rows = e.changes(c.stream, func() {
				_, err := e.Authenticate(ctx, i, facts)
				require.Error(t, err)
			})
			require.Len(t, rows, 1)
		})
	}
	_, err := e.Authenticate(ctx, trust.Identity{NodeID: "nonsense"}, cert)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	got, err := e.Authenticate(ctx, id, cert)
	require.NoError(t, err)
	require.Equal(t, nodeapi.Caller{NodeID: caller.NodeID, Incarnation: 1, Host: caller.Host, State: lifecycle.NodeActive,
		Serial: cert.Serial, HasPolled: true, Idle: true, Floors: task.Floors{IdentitySequence: 1}}, got)
}

// The reclaimer deletes the records of refusals that no longer limit an audit row.
func TestOldRefusalsAreDeleted(t *testing.T) {
	e := setup(t)
	e.exec(`INSERT INTO identity_refusals SELECT gen_random_uuid(), 'lease_lost ' || n, now() - (n - 1) * interval '70 seconds'
		FROM generate_series(1, 100) n`)
	_, err := e.Reclaim(t.Context(), activities.ReclaimRequest{After: schema.NewID(), Limit: 1})
	require.NoError(t, err)
	require.Equal(t, int64(100), e.number("SELECT count(*) FROM identity_refusals"), "only the first batch deletes")
	_, err = e.Reclaim(t.Context(), activities.ReclaimRequest{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM identity_refusals"))
}

func TestIdentityIsRefusedInNoStateButRemoved(t *testing.T) {
	e := setup(t)
	caller, id, cert := e.enroll()
	for _, s := range lifecycle.NodeStates() {
		e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", caller.NodeID, s)
		got, err := e.Authenticate(t.Context(), id, cert)
		if s == lifecycle.NodeRemoved {
			requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, s, got.State)
	}
}

// What is shown of an identity: the one in use, the one that waits for its first
// use, how often it was replaced, and whether it is locked.
func TestIdentityIsShown(t *testing.T) {
	e := setup(t)
	m, other := e.machine(), e.machine()
	fresh := e.register()
	waiting := m.renewed(m.k(2))
	shown := e.node(m.caller.NodeID)
	require.Equal(t, m.cert.Serial, shown.Identity.Serial)
	require.NotNil(t, shown.PendingIdentity)
	require.Equal(t, waiting.cert.Serial, shown.PendingIdentity.Serial)
	require.Equal(t, waiting.cert.SPKI, shown.PendingIdentity.SPKI)
	require.Equal(t, int64(2), shown.IdentitySequence)
	require.Nil(t, shown.IdentityLock)

	old := m.held()
	m.adopt(waiting)
	m.use()
	shown = e.node(m.caller.NodeID)
	require.Equal(t, waiting.cert.Serial, shown.Identity.Serial)
	require.Nil(t, shown.PendingIdentity)

	e.pass()
	m.refused(old, schema.ReasonNodeLocked)
	for _, v := range e.nodes() {
		if v.ID != m.caller.NodeID {
			require.Nil(t, v.IdentityLock)
			require.Nil(t, v.PendingIdentity)
			continue
		}
		require.NotNil(t, v.IdentityLock)
		require.Equal(t, "superseded_serial", v.IdentityLock.Reason)
		require.WithinDuration(t, time.Now(), v.IdentityLock.Since, time.Minute)
	}
	require.Len(t, e.nodes(), 3)
	require.Equal(t, int64(1), e.node(other.caller.NodeID).IdentitySequence)
	require.Zero(t, e.node(fresh.ID).IdentitySequence)
}
