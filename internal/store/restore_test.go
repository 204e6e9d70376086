package store_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/restore"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// backup copies the tables of nodes, identities and work. The returned function puts the
// copy back, as a restore of the database does.
func (e *env) backup() (restore func()) {
	tables := []string{"nodes", "operations", "enrollment_tokens", "node_certificates", "identity_keys", "node_tasks"}
	for _, t := range tables {
		e.exec("CREATE TABLE saved_" + t + " AS SELECT * FROM " + t)
	}
	return func() {
		e.exec("TRUNCATE nodes, operations, enrollment_tokens, node_certificates, identity_keys, node_tasks CASCADE")
		for _, t := range tables {
			e.exec("INSERT INTO " + t + " SELECT * FROM saved_" + t)
		}
	}
}

// renewLater renews the identity with a certificate that is valid from a later time.
func (m *machine) renewLater(n int) {
	a := m.renewed(m.k(n))
	a.cert.NotBefore = time.Now().Add(time.Duration(n) * time.Hour)
	m.e.exec("UPDATE node_certificates SET not_before = $2 WHERE serial = $1", a.cert.Serial, a.cert.NotBefore)
	m.adopt(a)
	m.use()
}

// owner returns the restore mode as the owner of the tables uses it.
func (e *env) owner() *store.Restore {
	e.t.Helper()
	s, err := store.Open(e.t.Context(), store.Config{URL: e.url, MaxConns: 2})
	require.NoError(e.t, err)
	e.t.Cleanup(s.Close)
	return s.Restore
}

func (e *env) startRestoreMode() restore.Mode {
	e.t.Helper()
	m, err := e.owner().Start(e.t.Context(), "restored a dump", time.Hour, operator)
	require.NoError(e.t, err)
	require.True(e.t, m.On)
	return m
}

func TestCountersRiseToThoseOfThePoll(t *testing.T) {
	e := setup(t)
	m := e.machine()
	id := m.caller.NodeID
	poll := func(f task.Floors) {
		m.use()
		require.NoError(t, e.RecordPoll(t.Context(), m.caller, wire.PollRequest{Floors: f}))
	}
	next := func(step string) int64 {
		m.use()
		return m.caller.Floors.TaskSeq
	}
	c := e.claim(id, lifecycle.ActionDrain)
	first := e.dispatch(c.Fence, "a", task.FactsCollect)
	require.Equal(t, first.Seq, next("a"))
	rows := e.changes(id, func() {
		poll(task.Floors{TaskSeq: first.Seq})
		poll(task.Floors{TaskSeq: 1000, IdentitySequence: 40})
		poll(task.Floors{TaskSeq: 1000, IdentitySequence: 40})
		poll(task.Floors{TaskSeq: 1001}) // within a minute
	})
	require.Equal(t, []string{"nodes.floors_raised succeeded counters_ahead"}, rows)
	require.Equal(t, int64(1001), e.dispatch(c.Fence, "b", task.FactsCollect).Seq)
	m.adopt(m.renewed(m.k(2)))
	require.Equal(t, int64(41), m.sequence)

	rows = e.changes(id, func() {
		for range 3 {
			poll(task.Floors{TaskSeq: wire.MaxInteger, IdentitySequence: 40})
		}
	})
	require.Contains(t, rows, "nodes.floors_raised refused counters_implausible")
	require.Equal(t, int64(1001), next(""), "no node uses up its counters")
}

func TestRestoreModeNamesTheDatabase(t *testing.T) {
	e := setup(t)
	var name string
	require.NoError(t, e.raw.QueryRow(t.Context(), "SELECT current_database()").Scan(&name))
	m, err := e.owner().Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, name, m.Database)
	require.Positive(t, m.OtherSessions, "the session that read the name")
}

func TestRestoreModeAdoptsCertificates(t *testing.T) {
	e := setup(t)
	m, thief := e.machine(), e.machine()
	restore := e.backup()
	m.renewLater(2)
	before := m.held()
	m.renewLater(3)
	restore()

	newest := m.held()
	m.refused(newest, schema.ReasonSerialSuperseded)
	e.startRestoreMode()
	foreign := newest
	foreign.cert.SPKI = thief.cert.SPKI
	_, err := e.Authenticate(t.Context(), foreign.id, foreign.cert)
	requireKind(t, err, schema.KindInvalidRequest, "key_in_use")

	m.adopt(before) // it polled first
	m.use()
	m.adopt(newest)
	m.use()
	m.refused(before, schema.ReasonSerialSuperseded)
	e.pass()
	m.refused(before, schema.ReasonSerialSuperseded)
	require.False(t, e.locked(m.caller.NodeID), "what a restore replaced proves no clone")
	require.NoError(t, e.RecordPoll(t.Context(), m.caller, wire.PollRequest{Floors: task.Floors{IdentitySequence: m.sequence}}))
	sequence := m.sequence
	m.adopt(m.renewed(m.k(4)))
	require.Equal(t, sequence+1, m.sequence)
	m.use()
	s, err := e.Restore.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), s.IdentitiesAdopted)
	require.Equal(t, int64(1), s.NodesAhead)
}

func TestRestoreModeAdoptsIncarnation(t *testing.T) {
	e := setup(t)
	m := e.machine()
	old := m.held()
	set := verifierSet(1, "")
	require.NoError(t, e.PutSet(t.Context(), set, operator))
	require.NoError(t, e.RecordPoll(t.Context(), m.caller, wire.PollRequest{VerifierSet: set.Version, VerifierSetHash: set.Hash}))
	restore := e.backup()
	e.reissue(m, m.k(2))
	require.Equal(t, int64(2), m.id.Incarnation)
	restore()
	m.refused(m.held(), schema.ReasonIdentityMismatch)
	e.startRestoreMode()
	m.use()
	require.Equal(t, int64(2), m.caller.Incarnation)
	require.False(t, e.node(m.caller.NodeID).SetLost, "the new incarnation has reported no set yet")
	m.refused(old, schema.ReasonIdentityMismatch)
}

func TestRestoreModeRecovers(t *testing.T) {
	e := setup(t)
	m := e.machine()
	restore := e.backup()
	m.renewLater(2)
	restore()
	requireKind(t, m.recover(m.k(3)), schema.KindUnauthenticated, "token_unknown")
	e.startRestoreMode()
	m.adopt(m.recovered(m.k(3)))
	m.use()
	require.False(t, e.locked(m.caller.NodeID))
}

func TestRestoreModeSuspendsLocksUntilItEnds(t *testing.T) {
	e := setup(t)
	m := e.machine()
	old := m.held()
	m.renewLater(2)
	e.pass()
	e.startRestoreMode()
	m.refused(old, schema.ReasonSerialSuperseded)
	require.False(t, e.locked(m.caller.NodeID))
	_, err := e.owner().Start(t.Context(), "again", time.Hour, operator)
	requireKind(t, err, schema.KindOperationInProgress, "")
	faults, err := e.Admin.Faults(t.Context())
	require.NoError(t, err)
	require.Len(t, faults, 1)
	require.Equal(t, "restore_mode", faults[0].Reason)

	absent := func() []string {
		s, err := e.Restore.Status(t.Context())
		require.NoError(t, err)
		return s.Absent
	}
	require.Len(t, absent(), 1)
	require.NoError(t, e.Identities.Lock(t.Context(), m.caller.NodeID, "stolen", operator))
	require.Empty(t, absent(), "a locked node does not return")
	require.NoError(t, e.Identities.Unlock(t.Context(), m.caller.NodeID, "found", operator))

	e.exec("UPDATE restore_modes SET started_at = started_at - interval '2 hours', ends_at = ends_at - interval '2 hours'") // its time is over
	s, err := e.Restore.Status(t.Context())
	require.NoError(t, err)
	require.False(t, s.On)
	m.refused(old, schema.ReasonNodeLocked)
	require.True(t, e.locked(m.caller.NodeID))
	e.startRestoreMode()
	s, err = e.owner().Stop(t.Context(), operator)
	require.NoError(t, err)
	require.False(t, s.On)
}

func TestRestoreModeEndsOperationsAndTokens(t *testing.T) {
	e := setup(t)
	before, later, fresh := e.machine(), e.machine(), e.register()
	open := e.claim(before.caller.NodeID, lifecycle.ActionDrain)
	opened := e.claim(later.caller.NodeID, lifecycle.ActionDrain)
	enrolling := e.claim(fresh.ID, lifecycle.ActionEnroll)
	tokenID, hash := e.token(fresh.ID)
	m := &machine{e: e, caller: later.caller}
	m.caller.NodeID = fresh.ID
	restore := e.backup()
	m.enroll(tokenID, hash, key(fresh.ID, 1))
	require.NoError(t, e.Finish(t.Context(), enrolling.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	restore()

	abandon := func(c activities.Claim) {
		marked, err := e.Operations.Abandon(t.Context(), c.Fence.OperationID, e.text("SELECT run_id FROM operations WHERE operation_id = $1", c.Fence.OperationID), lifecycle.RunClosed)
		require.NoError(t, err)
		require.True(t, marked)
	}
	abandon(open)
	require.Equal(t, lifecycle.NodeDraining, e.node(before.caller.NodeID).State, "without the mode a person decides")
	s := e.startRestoreMode()
	require.Equal(t, int64(1), s.TokensVoided)
	require.Equal(t, lifecycle.NodeActive, e.node(before.caller.NodeID).State)
	abandon(opened)
	require.Equal(t, lifecycle.NodeActive, e.node(later.caller.NodeID).State)
	require.Empty(t, e.operations(later.caller.NodeID, true))

	m.use()
	abandon(enrolling)
	require.Equal(t, lifecycle.NodeActive, e.node(fresh.ID).State, "the node enrolled in the lost time")
	require.NotEqual(t, "claimed", e.tokenStateOf(tokenID))
	s, err := e.Restore.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(3), s.OperationsEnded)
	_, err = e.ClaimToken(t.Context(), tokenClaim(fresh.ID, tokenID, hash, key(fresh.ID, 9)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
}

// A session of the console that was logged out in the lost time is in the restored database again, and the
// restore mode ends it.
func TestRestoreModeEndsConsoleSessions(t *testing.T) {
	e := setup(t)
	session := console.Session{ID: sha256.Sum256([]byte("cookie")), Token: sha256.Sum256([]byte("token")), Subject: "ops"}
	require.NoError(t, e.Console.CreateSession(t.Context(), session))
	e.exec("CREATE TABLE saved_console_sessions AS SELECT * FROM console_sessions")
	require.NoError(t, e.Console.DeleteSession(t.Context(), session.ID))
	e.exec("INSERT INTO console_sessions SELECT * FROM saved_console_sessions")
	_, err := e.Console.FindSession(t.Context(), session.ID, true)
	require.NoError(t, err, "the restore logged it in again")
	e.startRestoreMode()
	_, err = e.Console.FindSession(t.Context(), session.ID, true)
	requireKind(t, err, schema.KindNotFound, "")
}

// The restore mode starts in a dump of a version that had no console.
func TestRestoreModeWithoutConsoleSessions(t *testing.T) {
	e := setup(t)
	e.exec("DROP TABLE console_sessions")
	e.startRestoreMode()
}

// spare begins the reissue of a node that enrolled while a reference to another bundle of its
// enrollment was not used.
func (e *env) spare() activities.Claim {
	e.t.Helper()
	n := e.register()
	enrolling := e.claim(n.ID, lifecycle.ActionEnroll)
	tokenID, hash := e.token(n.ID)
	require.NoError(e.t, e.IssueFetch(e.t.Context(), mint(n.ID, trust.PurposeEnroll), operator))
	m := &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID, Incarnation: 1, Host: n.Host}}
	m.enroll(tokenID, hash, key(n.ID, 1))
	require.NoError(e.t, e.Finish(e.t.Context(), enrolling.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	return e.claim(n.ID, lifecycle.ActionReissueEnrollment)
}

// A reissue ends with the token that the restore mode voids: its install line is of no use, and a
// new reissue can start. One that waits for the first poll, or has no token yet, continues.
func TestRestoreModeEndsReissues(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	voided, claimed, polls := e.machine(), e.machine(), e.machine()
	r := request(voided.caller.NodeID, lifecycle.ActionReissueEnrollment)
	r.Document = &lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: r.OperationID, Action: r.Action}}
	_, err := e.Claim(ctx, r)
	require.NoError(t, err)
	e.reissued(voided.caller.NodeID)
	e.claim(claimed.caller.NodeID, lifecycle.ActionReissueEnrollment)
	token, hash := e.reissued(claimed.caller.NodeID)
	_, err = e.ClaimToken(ctx, tokenClaim(claimed.caller.NodeID, token, hash, claimed.k(2)))
	require.NoError(t, err)
	waits := e.claim(polls.caller.NodeID, lifecycle.ActionReissueEnrollment)
	e.reissue(polls, polls.k(2))
	early := e.claim(e.machine().caller.NodeID, lifecycle.ActionReissueEnrollment)
	spare := e.spare()

	rows := e.changes(voided.caller.NodeID, func() { e.startRestoreMode() })
	require.Equal(t, []string{"nodes.reissue_enrollment failed token_voided"}, rows)
	require.Empty(t, e.operations(voided.caller.NodeID, true))
	require.Empty(t, e.operations(claimed.caller.NodeID, true))
	require.Equal(t, []string{waits.Fence.OperationID}, ids(e.operations(polls.caller.NodeID, true)))
	require.Equal(t, []string{early.Fence.OperationID}, ids(e.operations(early.Fence.NodeID, true)))
	require.Equal(t, []string{spare.Fence.OperationID}, ids(e.operations(spare.Fence.NodeID, true)), "the voided reference is not the reissue's")

	op, err := e.Operation(ctx, r.OperationID)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationFailed, op.Operation.Status)
	require.Equal(t, "the restore mode voided its token; unless the node returns automatically, run: gpuaas node reissue-enrollment "+
		voided.caller.Host, op.Operation.Outcome)
	require.Equal(t, lifecycle.PhaseFailed, op.Operation.Phases[0].State)
	e.claim(voided.caller.NodeID, lifecycle.ActionReissueEnrollment)
	e.reissued(voided.caller.NodeID)
}
