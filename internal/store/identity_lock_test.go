package store_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// An operator's lock rejects every use of the identity, and its end accepts the same
// identity again. Repeated requests change nothing.
func TestOperatorLocksIdentity(t *testing.T) {
	e := setup(t)
	m := e.machine()
	e.dispatch(e.claim(m.caller.NodeID, lifecycle.ActionProvision).Fence, "facts", task.FactsCollect)
	rows := e.changes(m.caller.NodeID, func() {
		for range 2 {
			require.NoError(t, e.Lock(t.Context(), m.caller.NodeID, "key leaked", operator))
		}
	})
	require.Equal(t, []string{"nodes.lock succeeded key leaked"}, rows)
	lock := e.node(m.caller.NodeID).IdentityLock
	require.Equal(t, []string{trust.LockedByOperator, operator.Actor, "key leaked"}, []string{lock.Reason, lock.By, lock.Note})
	m.refused(m.held(), schema.ReasonNodeLocked)
	requireKind(t, m.renew(m.k(2)), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	requireKind(t, m.recover(m.k(2)), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	_, err := e.Authenticate(t.Context(), m.id, m.cert)
	require.Equal(t, "gpuaas node unlock "+m.caller.Host+" --reason TEXT", schema.AsError(err).Next)
	offer, err := e.NextTask(t.Context(), m.caller, wire.PollRequest{AgentSession: "a"}, task.LeaseDuration, nil)
	require.NoError(t, err)
	require.Nil(t, offer, "a request that was authenticated before the lock gets no task")
	faults, err := e.Faults(t.Context())
	require.NoError(t, err)
	require.Len(t, faults, 1)
	require.Contains(t, faults[0].Message, m.caller.Host)
	require.Contains(t, faults[0].Message, "key leaked")

	rows = e.changes(m.caller.NodeID, func() {
		for range 2 {
			require.NoError(t, e.Unlock(t.Context(), m.caller.NodeID, "checked", operator))
		}
	})
	require.Equal(t, []string{"nodes.unlock succeeded checked"}, rows)
	require.Nil(t, e.node(m.caller.NodeID).IdentityLock)
	m.use()
	m.adopt(m.renewed(m.k(2)))
	m.use()
}

// A token that was issued before the lock cannot replace the locked identity. One that is
// issued after it can.
func TestLockVoidsTokens(t *testing.T) {
	e := setup(t)
	m := e.machine()
	id, hash := e.reissued(m.caller.NodeID)
	require.NoError(t, e.Lock(t.Context(), m.caller.NodeID, "bundle leaked", operator))
	_, err := e.ClaimToken(t.Context(), tokenClaim(m.caller.NodeID, id, hash, m.k(2)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	require.True(t, e.locked(m.caller.NodeID))

	id, hash = e.reissued(m.caller.NodeID)
	rows := e.changes(m.caller.NodeID, func() {
		for range 2 {
			require.NoError(t, e.Lock(t.Context(), m.caller.NodeID, "bundle leaked", operator), "voids the tokens since the lock")
		}
	})
	require.Equal(t, []string{"nodes.lock succeeded bundle leaked"}, rows)
	_, err = e.ClaimToken(t.Context(), tokenClaim(m.caller.NodeID, id, hash, m.k(2)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	require.True(t, e.locked(m.caller.NodeID))
	e.reissue(m, m.k(3))
	require.Nil(t, e.node(m.caller.NodeID).IdentityLock)

	n := e.register()
	e.claim(n.ID, lifecycle.ActionEnroll)
	id, hash = e.token(n.ID)
	require.NoError(t, e.Lock(t.Context(), n.ID, "bundle leaked", operator))
	_, err = e.ClaimToken(t.Context(), tokenClaim(n.ID, id, hash, key(n.ID, 1)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	requireKind(t, e.IssueToken(t.Context(), mint(n.ID, trust.PurposeEnroll), operator), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	require.NoError(t, e.Unlock(t.Context(), n.ID, "checked", operator))
	e.token(n.ID)
}

// A locked identity can do nothing for an operation: no action that needs the agent starts, no
// task is enqueued, and the reads of an open operation say why it does not continue.
func TestLockedNodeReceivesNoTasks(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	id := m.caller.NodeID
	f := e.claim(id, lifecycle.ActionProvision).Fence
	open := spec(f, "facts", task.FactsCollect)
	e.enqueue(open)
	require.NoError(t, e.Lock(ctx, id, "key leaked", operator))

	for _, s := range []activities.TaskSpec{open, spec(f, "probe", task.NodeProbe)} {
		_, err := e.Prepare(ctx, s, taskOwner(s.Step))
		requireKind(t, err, schema.KindInvalidRequest, schema.ReasonNodeLocked)
	}
	row, err := e.Find(ctx, open)
	require.NoError(t, err)
	require.Contains(t, row.Locked.Message, "its identity is locked by "+operator.Actor+": key leaked (since ")
	require.Equal(t, "gpuaas node unlock "+m.caller.Host+" --reason TEXT", row.Locked.Next)
	_, err = e.HeartbeatAge(ctx, id)
	requireKind(t, err, schema.KindInvalidRequest, schema.ReasonNodeLocked)
	rows := e.changes(id, func() {
		_, err = e.Claim(ctx, request(id, lifecycle.ActionRetire))
		requireKind(t, err, schema.KindInvalidRequest, schema.ReasonNodeLocked)
	})
	require.Equal(t, []string{"nodes.retire refused node_locked"}, rows)

	require.NoError(t, e.Unlock(ctx, id, "checked", operator))
	_, err = e.Prepare(ctx, open, taskOwner(open.Step))
	require.NoError(t, err)
	row, err = e.Find(ctx, open)
	require.NoError(t, err)
	require.Nil(t, row.Locked)
	_, err = e.HeartbeatAge(ctx, id)
	require.NoError(t, err)
	e.claim(id, lifecycle.ActionRetire)

	require.NoError(t, e.Lock(ctx, id, "key leaked", operator))
	e.claim(id, lifecycle.ActionQuarantine)
}

// A lock ends the reissue whose token it voids. One without a token continues.
func TestLockEndsTheReissue(t *testing.T) {
	e := setup(t)
	id := e.machine().caller.NodeID
	c := e.claim(id, lifecycle.ActionReissueEnrollment)
	require.NoError(t, e.Lock(t.Context(), id, "key leaked", operator))
	require.Equal(t, []string{c.Fence.OperationID}, ids(e.operations(id, true)), "it has no token yet")
	e.reissued(id)
	require.NoError(t, e.Lock(t.Context(), id, "bundle leaked", operator))
	require.Empty(t, e.operations(id, true))
	e.claim(id, lifecycle.ActionReissueEnrollment)
	e.reissued(id)
}

func ids(operations []wire.OperationSummary) (ids []string) {
	for _, o := range operations {
		ids = append(ids, o.OperationID)
	}
	return ids
}

// A lock that the server set stays: both machines would be accepted again. An operator's
// lock voids the tokens that could lift it, and its reason is audited.
func TestCloneLockNeedsReissue(t *testing.T) {
	e := setup(t)
	m := e.machine()
	thief := m.held()
	m.adopt(m.renewed(m.k(2)))
	m.use()
	e.pass()
	m.refused(thief, schema.ReasonNodeLocked)
	id, hash := e.reissued(m.caller.NodeID)
	rows := e.changes(m.caller.NodeID, func() {
		require.NoError(t, e.Lock(t.Context(), m.caller.NodeID, "bundle leaked", operator))
	})
	require.Equal(t, []string{"nodes.lock succeeded bundle leaked"}, rows)
	_, err := e.ClaimToken(t.Context(), tokenClaim(m.caller.NodeID, id, hash, m.k(3)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	err = e.Unlock(t.Context(), m.caller.NodeID, "please", operator)
	requireKind(t, err, schema.KindInvalidRequest, "reissue_required")
	require.Equal(t, "gpuaas node reissue-enrollment "+m.caller.Host, schema.AsError(err).Next)
	require.Equal(t, trust.LockedBySerial, e.node(m.caller.NodeID).IdentityLock.Reason)
	requireLocked(t, m)

	removed := e.inState(lifecycle.NodeRemoved)
	requireKind(t, e.Lock(t.Context(), removed.ID, "x", operator), schema.KindInvalidRequest, "invalid_state")
	requireKind(t, e.Lock(t.Context(), schema.NewID(), "x", operator), schema.KindNotFound, "")
	requireKind(t, e.Unlock(t.Context(), schema.NewID(), "x", operator), schema.KindNotFound, "")
}

// session polls as an agent process, as the node API does.
func (m *machine) session(name string, seq int64) error {
	c, err := m.e.Authenticate(m.e.t.Context(), m.id, m.cert)
	if err != nil {
		return err
	}
	return m.e.RecordSession(m.e.t.Context(), c, wire.PollRequest{AgentSession: name, PollSeq: seq, Nonce: schema.NewID()})
}

// later lets so much time pass for the node's sessions.
func (m *machine) later(seconds float64) {
	m.e.exec(`UPDATE node_sessions SET first_at = first_at - make_interval(secs => $2), returned_at = returned_at - make_interval(secs => $2)
		WHERE node_id = $1`, m.caller.NodeID, seconds)
}

// TestTwoSessionsLockIdentity: two agent processes that poll in turn run on two machines,
// whatever the second one calls itself.
func TestTwoSessionsLockIdentity(t *testing.T) {
	t.Parallel()
	fresh := func(count int) (names []string) {
		for range count {
			names = append(names, schema.NewID())
		}
		return names
	}
	for name, second := range map[string]func() []string{
		"two names":                   func() []string { return []string{"b"} },
		"a new name every time":       func() []string { return fresh(1) },
		"nine new names every time":   func() []string { return fresh(9) },
		"eighty new names every time": func() []string { return fresh(80) },
	} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			others := func(seq int64) {
				for _, name := range second() {
					require.NoError(t, m.session(name, seq))
				}
			}
			require.NoError(t, m.session("a", 1))
			m.later(2 * 3600)
			others(1)
			require.NoError(t, m.session("a", 2))
			others(2)
			require.NoError(t, m.session("a", 3), "polls that were delayed arrive together")
			others(3)
			require.LessOrEqual(t, e.number("SELECT count(*) FROM node_sessions WHERE node_id = $1", m.caller.NodeID), int64(64))
			m.later(trust.SessionGap.Seconds() + 1)
			requireKind(t, m.session("a", 4), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
			require.Equal(t, trust.LockedBySessions, e.node(m.caller.NodeID).IdentityLock.Reason)
			requireLocked(t, m)
			e.reissue(m, m.k(5)) // the process that holds the new identity keeps its name
			for seq := range int64(4) {
				require.NoError(t, m.session("a", 10+seq))
				m.later(600)
			}
			require.False(t, e.locked(m.caller.NodeID))
		})
	}
}

// A process that repeats the number of its poll, or the whole poll, longer than a request
// can be in flight still runs.
func TestRepeatedPollsLockIdentity(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]string{"the number": "2", "the poll": "1"} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			poll := func(nonce string) error {
				c, err := e.Authenticate(t.Context(), m.id, m.cert)
				require.NoError(t, err)
				return e.RecordSession(t.Context(), c, wire.PollRequest{AgentSession: "a", PollSeq: 7, Nonce: nonce})
			}
			require.NoError(t, poll("0"))
			require.NoError(t, m.session("b", 1))
			require.NoError(t, poll("1"))
			require.NoError(t, m.session("b", 2))
			m.later(trust.SessionGap.Seconds() + 1)
			require.NoError(t, poll(again), "it may have been delayed")
			require.NoError(t, m.session("b", 3))
			m.later(trust.InFlight.Seconds())
			requireKind(t, poll(again), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
			require.Equal(t, trust.LockedBySessions, e.node(m.caller.NodeID).IdentityLock.Reason)
		})
	}
}

// TestSessionsThatNeverLock has what a single machine may do. The second process of each
// starts after the first one has ended.
func TestSessionsThatNeverLock(t *testing.T) {
	t.Parallel()
	long := trust.InFlight.Seconds() + 1
	cases := map[string]func(m *machine, poll func(name string, seq int64)){
		"restarts": func(m *machine, poll func(string, int64)) {
			for i := range 30 {
				poll(schema.NewID(), 1)
				poll(schema.NewID(), 2)
				m.later(float64(i))
			}
		},
		"one late poll at every restart": func(m *machine, poll func(string, int64)) {
			before := "first"
			poll(before, 1)
			for range 10 {
				next := schema.NewID()
				poll(next, 1)
				m.later(20)
				poll(before, 9) // of the process that has ended
				m.later(20)
				poll(next, 2)
				before = next
			}
		},
		"a crash loop with late polls": func(m *machine, poll func(string, int64)) {
			before := "first"
			poll(before, 1)
			for range 80 {
				next := schema.NewID()
				poll(next, 1)
				poll(before, 2)
				m.later(5)
				before = next
			}
		},
		"late polls that arrive together": func(_ *machine, poll func(string, int64)) {
			poll("a", 1)
			for seq := range int64(4) {
				poll("b", seq)
				poll("a", 2+seq)
			}
		},
		"a machine restored to an earlier state of its memory": func(m *machine, poll func(string, int64)) {
			poll("a", 1)
			poll("b", 1)
			m.later(long)
			for seq := range int64(5) {
				poll("a", 2+seq)
				m.later(30)
			}
			poll("c", 1)
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			run(m, func(name string, seq int64) {
				t.Helper()
				require.NoError(t, m.session(name, seq), name)
			})
			require.False(t, e.locked(m.caller.NodeID))
			m.use()
		})
	}
	t.Run("a repeated poll", func(t *testing.T) {
		e := setup(t)
		m := e.machine()
		require.NoError(t, m.session("a", 1))
		c, err := e.Authenticate(t.Context(), m.id, m.cert)
		require.NoError(t, err)
		late := wire.PollRequest{AgentSession: "a", Nonce: "n"}
		for range 5 {
			c.Session = ""
			require.NoError(t, m.session("b", 1))
			m.later(20)
			require.NoError(t, e.RecordSession(t.Context(), c, late))
		}
		require.False(t, e.locked(m.caller.NodeID))
	})
}

// A process that polls long after a newer one began raises one alarm, which an operator
// dismisses.
func TestReturnedSessionRaisesAlarm(t *testing.T) {
	e := setup(t)
	m := e.machine()
	require.NoError(t, m.session("a", 1))
	require.NoError(t, m.session("b", 1))
	rows := e.changes(m.caller.NodeID, func() {
		m.later(trust.InFlight.Seconds() + 1)
		require.NoError(t, m.session("a", 2))
		require.NoError(t, m.session("a", 3))
	})
	require.Equal(t, []string{"nodes.identity_alarm succeeded session_returned"}, rows)
	require.Equal(t, trust.AlarmSession, e.node(m.caller.NodeID).IdentityAlarm.Reason)
	counts, err := e.IdentityAttention(t.Context())
	require.NoError(t, err)
	require.Len(t, counts, 1)
	require.NoError(t, e.Unlock(t.Context(), m.caller.NodeID, "restored from a snapshot", operator))
	require.Nil(t, e.node(m.caller.NodeID).IdentityAlarm)
}

// More processes than one machine starts raise an alarm. They may be a crash loop, so they
// lock nothing.
func TestManyProcessesRaiseAlarm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		processes int
		apart     float64 // seconds
	}{"within two minutes": {9, 5}, "within an hour": {65, 50}} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			start := func() {
				require.NoError(t, m.session(schema.NewID(), 1))
				m.later(c.apart)
			}
			for range c.processes - 1 {
				start()
			}
			require.Nil(t, e.node(m.caller.NodeID).IdentityAlarm)
			rows := e.changes(m.caller.NodeID, func() {
				for range 5 {
					start()
				}
			})
			require.Equal(t, []string{"nodes.identity_alarm succeeded many_processes"}, rows)
			require.Equal(t, trust.AlarmProcesses, e.node(m.caller.NodeID).IdentityAlarm.Reason)
			m.use()
		})
	}
}

// An alarm is not replaced by one that proves less, and is audited once an hour.
func TestAlarmIsNotHidden(t *testing.T) {
	e := setup(t)
	m := e.machine()
	id, hash := e.reissued(m.caller.NodeID)
	m.enroll(id, hash, m.k(2))
	replay := func() {
		_, err := e.ClaimToken(t.Context(), tokenClaim(m.caller.NodeID, id, hash, m.k(3)))
		requireKind(t, err, schema.KindTokenConsumed, "token_used")
	}
	alarms := func(do func()) (n int) {
		for _, row := range e.changes(m.caller.NodeID, do) {
			if strings.HasPrefix(row, audit.IdentityAlarm) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, alarms(func() {
		for range 3 {
			replay()
			e.exec("UPDATE nodes SET identity_alarm_at = identity_alarm_at - interval '2 minutes'")
		}
	}))
	require.Equal(t, trust.AlarmToken, e.node(m.caller.NodeID).IdentityAlarm.Reason)
	require.NoError(t, m.session("a", 1))
	require.NoError(t, m.session("b", 1))
	m.later(trust.InFlight.Seconds() + 1)
	require.NoError(t, m.session("a", 2))
	require.Equal(t, trust.AlarmSession, e.node(m.caller.NodeID).IdentityAlarm.Reason)
	require.Zero(t, alarms(replay))
	require.Equal(t, trust.AlarmSession, e.node(m.caller.NodeID).IdentityAlarm.Reason)
	e.exec("UPDATE nodes SET identity_alarm_at = identity_alarm_at - make_interval(secs => $1)", trust.AlarmAge.Seconds()+1)
	require.Equal(t, 1, alarms(replay))
	require.Equal(t, trust.AlarmToken, e.node(m.caller.NodeID).IdentityAlarm.Reason, "the other is no longer shown")
}

// TestTokenPresentedTwice: who presents a claimed token with another key may be the thief
// or the victim, so there is an alarm. The victim of a reissue proves itself by the
// recovery key with which it was enrolled.
func TestTokenPresentedTwice(t *testing.T) {
	t.Parallel()
	reissued := func(t *testing.T) (e *env, m *machine, id string, hash []byte) {
		t.Helper()
		e = setup(t)
		m = e.machine() // with recoveryKey
		id, hash = e.reissued(m.caller.NodeID)
		return e, m, id, hash
	}
	thiefs := bytes.Repeat([]byte{1}, 32)
	claim := func(e *env, m *machine, id string, hash []byte, spki string, recovery []byte) error {
		c := tokenClaim(m.caller.NodeID, id, hash, spki)
		c.RecoveryKey = recovery
		_, err := e.ClaimToken(e.t.Context(), c)
		return err
	}
	t.Run("the node proves itself", func(t *testing.T) {
		e, m, id, hash := reissued(t)
		require.NoError(t, claim(e, m, id, hash, m.k(8), thiefs))
		rows := e.changes(m.caller.NodeID, func() {
			requireKind(t, claim(e, m, id, hash, m.k(9), recoveryKey), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		})
		require.Equal(t, []string{"nodes.identity_locked succeeded token_claimed_by_another"}, rows)
		require.True(t, e.locked(m.caller.NodeID))
	})
	t.Run("the node claimed first", func(t *testing.T) {
		e, m, id, hash := reissued(t)
		require.NoError(t, claim(e, m, id, hash, m.k(8), recoveryKey))
		for range 3 {
			requireKind(t, claim(e, m, id, hash, m.k(9), thiefs), schema.KindTokenConsumed, "token_claimed")
			requireKind(t, claim(e, m, id, hash, m.k(9), recoveryKey), schema.KindTokenConsumed, "token_claimed")
			require.NoError(t, claim(e, m, id, hash, m.k(8), recoveryKey), "the first key may repeat its request")
		}
		require.False(t, e.locked(m.caller.NodeID))
		require.Equal(t, trust.AlarmToken, e.node(m.caller.NodeID).IdentityAlarm.Reason)
		require.Equal(t, int64(1), e.number("SELECT count(*) FROM audit_events WHERE stream = $1 AND action = $2", m.caller.NodeID, audit.IdentityAlarm))
	})
	t.Run("the node claimed first, with another recovery key", func(t *testing.T) {
		e, m, id, hash := reissued(t)
		proves := func(spki string, recovery, previous []byte) error {
			c := tokenClaim(m.caller.NodeID, id, hash, spki)
			c.RecoveryKey, c.PreviousKey = recovery, previous
			_, err := e.ClaimToken(t.Context(), c)
			return err
		}
		fresh := bytes.Repeat([]byte{2}, 32)
		for range 2 {
			require.NoError(t, proves(m.k(8), fresh, recoveryKey))
			requireKind(t, proves(m.k(9), thiefs, recoveryKey), schema.KindTokenConsumed, "token_claimed")
			requireKind(t, proves(m.k(9), recoveryKey, nil), schema.KindTokenConsumed, "token_claimed")
		}
		require.False(t, e.locked(m.caller.NodeID), "a copy of the previous key no longer proves anything")

		m.caller.Incarnation = 2
		m.adopt(m.issue(trust.IssuedByEnroll, id, m.k(8)))
		m.use()
		id, hash = e.reissued(m.caller.NodeID)
		require.NoError(t, proves(m.k(5), thiefs, nil))
		requireKind(t, proves(m.k(6), bytes.Repeat([]byte{3}, 32), fresh), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		require.True(t, e.locked(m.caller.NodeID), "the key of the incarnation before proves the node")
	})
	t.Run("a first enrollment", func(t *testing.T) {
		e := setup(t)
		m := &machine{e: e}
		m.caller.NodeID = e.register().ID
		e.claim(m.caller.NodeID, lifecycle.ActionEnroll)
		id, hash := e.token(m.caller.NodeID)
		require.NoError(t, claim(e, m, id, hash, m.k(1), thiefs))
		wrong := append([]byte{^hash[0]}, hash[1:]...)
		requireKind(t, claim(e, m, id, wrong, m.k(2), recoveryKey), schema.KindUnauthenticated, "token_unknown")
		require.Nil(t, e.node(m.caller.NodeID).IdentityAlarm)
		requireKind(t, claim(e, m, id, hash, m.k(2), recoveryKey), schema.KindTokenConsumed, "token_claimed")
		require.Equal(t, trust.AlarmToken, e.node(m.caller.NodeID).IdentityAlarm.Reason)
		require.False(t, e.locked(m.caller.NodeID))
	})
}

// The database accepts every host that the API accepts, and none that is more than a word
// in a command.
func TestStoredHostsAreChecked(t *testing.T) {
	e := setup(t)
	id := e.register().ID
	for _, host := range []string{"a", "gpu-17", "GPU-17.example.com", "10.0.0.7", "::1", "fe80::1", "::ffff:10.0.0.7", "xn--bcher-kva.example", "7a"} {
		require.True(t, text.IsHost(host), host)
		e.exec("UPDATE nodes SET host = $2 WHERE node_id = $1", id, host)
	}
	for _, host := range []string{"", "-a", "a b", "a\nb", "::1%\necho PWNED #", "$(reboot)", "a;b", "a'b", "a\"b", "ä", "a/b", "a`b`", "a_b\x01", "a\n"} {
		require.False(t, text.IsHost(host), host)
		_, err := e.raw.Exec(t.Context(), "UPDATE nodes SET host = $2 WHERE node_id = $1", id, host)
		require.Error(t, err, host)
	}
}
