package store_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestRetiredSerialLocksIdentity(t *testing.T) {
	e := setup(t)
	m := e.machine()
	thief := m.held()
	m.adopt(m.renewed(m.k(2)))
	m.use()
	m.refused(thief, schema.ReasonSerialSuperseded)
	require.False(t, e.locked(m.caller.NodeID), "within the window it may have been on its way")

	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	wake, cancel := l.Subscribe(m.caller.NodeID, m.caller.Incarnation)
	defer cancel()
	defer listen(t.Context(), l)()
	<-wake // it is connected
	e.pass()
	rows := e.changes(m.caller.NodeID, func() {
		for _, err := range race(10, func(int) error { _, err := e.Authenticate(t.Context(), thief.id, thief.cert); return err }) {
			requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		}
	})
	require.Equal(t, 1, count(rows, "nodes.identity_locked succeeded superseded_serial"))
	require.LessOrEqual(t, len(rows), 2, "one lock, and at most one refusal of a locked node a minute")
	awaken(t, wake) // open polls end
	for _, ev := range e.chain(m.caller.NodeID) {
		if ev.Action == audit.IdentityLocked {
			require.Equal(t, thief.cert.Serial, ev.Detail["serial"])
			require.Equal(t, m.cert.Serial, ev.Detail["current_serial"])
		}
	}
	requireLocked(t, m)
}

// requireLocked requires that the node's identity opens nothing.
func requireLocked(t *testing.T, m *machine) {
	t.Helper()
	ctx, e := t.Context(), m.e
	require.True(t, e.locked(m.caller.NodeID))
	m.refused(m.held(), schema.ReasonNodeLocked)
	requireKind(t, m.renew(m.k(90)), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	requireKind(t, m.recover(m.k(90)), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	_, err := e.RecoveryFacts(ctx, m.caller.NodeID)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	require.Equal(t, "gpuaas node reissue-enrollment "+m.caller.NodeID, schema.AsError(err).Next)
	_, err = e.Authenticate(ctx, m.id, m.cert)
	require.Equal(t, "gpuaas node reissue-enrollment "+m.caller.Host, schema.AsError(err).Next)
	require.NotEmpty(t, m.caller.Host)
	_, err = m.tryIssue(trust.IssuedByRenew, "", m.k(90))
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	require.Equal(t, "gpuaas node reissue-enrollment "+m.caller.Host, schema.AsError(err).Next)
}

func TestWhatNeverLocks(t *testing.T) {
	t.Parallel()
	cases := map[string]func(e *env, m *machine){
		"a certificate that was replaced before its use": func(e *env, m *machine) {
			unused := m.renewed(m.k(2))
			m.adopt(m.renewed(m.k(3)))
			m.use()
			e.pass()
			m.refused(unused, schema.ReasonSerialSuperseded)
		},
		"a replaced certificate on its way": func(_ *env, m *machine) {
			old := m.held()
			m.adopt(m.renewed(m.k(2)))
			m.use()
			m.refused(old, schema.ReasonSerialSuperseded)
		},
		"an unknown serial": func(_ *env, m *machine) {
			a := m.held()
			a.cert.Serial = "00ff"
			m.refused(a, schema.ReasonSerialSuperseded)
		},
		"a replaced serial of another certificate": func(e *env, m *machine) {
			old := m.held()
			m.adopt(m.renewed(m.k(2)))
			m.use()
			e.pass()
			old.cert.Fingerprint = "00"
			m.refused(old, schema.ReasonIdentityMismatch)
		},
		"an identity of an older incarnation": func(e *env, m *machine) {
			old := m.held()
			m.adopt(m.renewed(m.k(2)))
			m.use()
			e.reissue(m, m.k(3))
			e.pass()
			m.refused(old, schema.ReasonIdentityMismatch)
		},
		"a stale sequence with the key that is asked for": func(_ *env, m *machine) {
			m.adopt(m.renewed(m.k(2)))
			m.use()
			require.NoError(m.e.t, m.renew(m.k(3)))
			m.sequence = 0
			require.NoError(m.e.t, m.renew(m.k(3)))
			require.NoError(m.e.t, m.renew(m.k(2)), "nor with the key it holds")
			m.sequence = 2
		},
		"a sequence that is ahead": func(_ *env, m *machine) {
			m.sequence = 99
			require.NoError(m.e.t, m.renew(m.k(2)))
			require.NoError(m.e.t, m.recover(m.k(2)))
		},
		"a recovery that comes again after it succeeded": func(_ *env, m *machine) {
			old := *m
			m.adopt(m.recovered(m.k(2)))
			m.use()
			requireKind(m.e.t, old.recover(m.k(2)), schema.KindTokenConsumed, "token_used")
		},
		"a stale sequence with a secret that is wrong": func(_ *env, m *machine) {
			old := *m
			m.adopt(m.recovered(m.k(2)))
			m.use()
			old.recovery.Hash = make([]byte, 32)
			requireKind(m.e.t, old.recover(m.k(3)), schema.KindUnauthenticated, "token_unknown")
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			run(e, m)
			require.False(t, e.locked(m.caller.NodeID))
			m.use()
			require.Zero(t, e.number("SELECT count(*) FROM audit_events WHERE action = 'nodes.identity_locked'"))
		})
	}
}

func TestSequenceBehindLocksIdentity(t *testing.T) {
	t.Parallel()
	t.Run("a renewal", func(t *testing.T) {
		e := setup(t)
		m := e.machine()
		m.adopt(m.renewed(m.k(2)))
		m.use()
		m.sequence = 1
		rows := e.changes(m.caller.NodeID, func() {
			requireKind(t, m.renew(m.k(3)), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		})
		require.Equal(t, []string{"nodes.identity_locked succeeded sequence_behind"}, rows)
		requireLocked(t, m)
	})
	t.Run("a recovery", func(t *testing.T) {
		e := setup(t)
		m := e.machine()
		clone := *m
		m.adopt(m.recovered(m.k(2)))
		m.use()
		rows := e.changes(m.caller.NodeID, func() {
			requireKind(t, clone.recover(m.k(3)), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		})
		require.Equal(t, []string{"nodes.identity_locked succeeded sequence_behind"}, rows)
		chain := e.chain(m.caller.NodeID)
		last := chain[len(chain)-1]
		require.Equal(t, clone.cert.Serial, last.Detail["serial"])
		require.Equal(t, m.cert.Serial, last.Detail["current_serial"])
		requireLocked(t, m)
	})
	t.Run("not an incarnation that was reissued meanwhile", func(t *testing.T) {
		e := setup(t)
		m := e.machine()
		clone := *m
		m.adopt(m.recovered(m.k(2)))
		m.use()
		e.reissue(m, m.k(3))
		requireKind(t, clone.recover(m.k(4)), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
		require.False(t, e.locked(m.caller.NodeID))
	})
}

// Two copies of one disk: whichever continues, the other is found out within one
// renewal, and both are cut.
func TestCopiedDiskIsDetected(t *testing.T) {
	e := setup(t)
	a := e.machine()
	b := *a
	a.adopt(a.renewed(a.k(2)))
	b.adopt(b.renewed(b.k(3))) // takes the place of what a was given
	a.refused(a.held(), schema.ReasonSerialSuperseded)
	b.use()
	old := answer{a.id, a.cert, 1, a.recovery}
	require.NoError(t, e.raw.QueryRow(t.Context(), "SELECT serial, fingerprint FROM node_certificates WHERE sequence = 1").
		Scan(&old.cert.Serial, &old.cert.Fingerprint))
	e.pass()
	a.refused(old, schema.ReasonNodeLocked)
	requireLocked(t, &b)
}

func TestRemovedComesBeforeLocked(t *testing.T) {
	e := setup(t)
	m := e.machine()
	old := m.held()
	m.adopt(m.renewed(m.k(2)))
	m.use()
	e.pass()
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", m.caller.NodeID)
	m.refused(old, schema.ReasonNodeRemoved)
	require.False(t, e.locked(m.caller.NodeID))
	e.exec("UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'x' WHERE node_id = $1", m.caller.NodeID)
	m.refused(m.held(), schema.ReasonNodeRemoved)
	requireKind(t, m.renew(m.k(3)), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	requireKind(t, m.recover(m.k(3)), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	_, err := e.RecoveryFacts(t.Context(), m.caller.NodeID)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	requireKind(t, e.IssueToken(t.Context(), mint(m.caller.NodeID, trust.PurposeReissue), operator), schema.KindInvalidRequest, "invalid_state")
}
