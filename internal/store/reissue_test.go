package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reissue gives the node a new identity by a reissued token.
func (e *env) reissue(m *machine, spki string) {
	e.t.Helper()
	tokenID, hash := e.reissued(m.caller.NodeID)
	m.enroll(tokenID, hash, spki)
}

// reissued issues a token of purpose reissue.
func (e *env) reissued(nodeID string) (string, []byte) {
	e.t.Helper()
	t := mint(nodeID, trust.PurposeReissue)
	require.NoError(e.t, e.IssueToken(e.t.Context(), t, operator))
	return t.TokenID, t.Hash
}

// signals takes the outbox's events as "workflow event incarnation" and forgets
// them.
func (e *env) signals(nodeID string) []string {
	e.t.Helper()
	o := e.outbox()
	messages, err := o.Take(e.t.Context(), 100, nil)
	require.NoError(e.t, err)
	host := e.node(nodeID).Host
	names := map[string]string{lifecycle.NodeWorkflowID(host, nodeID): "node", lifecycle.ReissueWorkflowID(host, nodeID): "reissue"}
	signals, received := []string{}, []relay.Message{}
	for _, m := range messages {
		if m.Result != nil {
			continue
		}
		signals = append(signals, fmt.Sprintf("%s %s %d", names[m.WorkflowID], m.Event.Event, m.Event.Incarnation))
		received = append(received, m)
	}
	_, err = o.Take(e.t.Context(), 0, received)
	require.NoError(e.t, err)
	return signals
}

func TestReissue(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	id := m.caller.NodeID
	e.signals(id)
	old := *m
	provision := e.claim(id, lifecycle.ActionProvision)
	e.dispatch(provision.Fence, "facts", task.FactsCollect)
	offer := e.take(m.caller, task.LeaseDuration)

	_, err := e.Claim(ctx, reissueRequest(id))
	require.NoError(t, err)
	tokenID, hash := e.reissued(id)
	require.Equal(t, []string{"reissue bundle_issued 2"}, e.signals(id))
	progress := func() activities.Enrollment {
		p, err := e.Enrollment(ctx, id)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, activities.Enrollment{Incarnation: 1, ReissueIssued: true, BundleIssued: true, TokenClaimed: true, Polled: true}, progress())
	m.use() // the old identity is good until the claim
	require.NoError(t, m.recover(m.k(8)))

	c := tokenClaim(id, tokenID, hash, m.k(2))
	won, err := e.ClaimToken(ctx, c)
	require.NoError(t, err)
	require.Equal(t, nodeapi.ClaimResult{TokenID: tokenID, NodeID: id, Incarnation: 2, Now: won.Now}, won)
	require.Equal(t, []string{"reissue token_claimed 2"}, e.signals(id))
	require.Equal(t, activities.Enrollment{Incarnation: 2, BundleIssued: true, TokenClaimed: true}, progress())
	require.Equal(t, lifecycle.NodeActive, e.node(id).State, "the state is left alone")
	old.refused(old.held(), schema.ReasonIdentityMismatch)
	requireKind(t, old.recover(m.k(8)), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	requireKind(t, old.renew(m.k(8)), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	require.Equal(t, "voided", e.tokenStateOf(old.recovery.TokenID))
	_, err = e.Result(ctx, old.caller, offer.TaskID, succeeded(1, inventory.Facts{}))
	require.NoError(t, err, "a result that was on its way counts: the task's incarnation is the caller's")
	c.RecoveryKey = recoveryKey
	again, err := e.ClaimToken(ctx, c)
	require.NoError(t, err, "the same key may retry")
	require.Equal(t, int64(2), again.Incarnation)
	require.True(t, again.Recoverable)
	require.Empty(t, e.signals(id))
	e.exec("UPDATE enrollment_tokens SET expires_at = now() WHERE token_id = $1", tokenID)
	_, err = e.ClaimToken(ctx, c)
	require.NoError(t, err, "even after an outage longer than the token's life: the older identity is gone")
	_, err = e.ClaimToken(ctx, tokenClaim(id, tokenID, hash, m.k(3)))
	requireKind(t, err, schema.KindTokenConsumed, "token_claimed")

	m.caller.Incarnation = 2
	m.adopt(m.issue(trust.IssuedByEnroll, tokenID, m.k(2)))
	require.Equal(t, int64(1), m.sequence, "an incarnation counts for itself")
	m.use()
	require.False(t, m.caller.HasPolled)
	require.NoError(t, e.RecordPoll(ctx, m.caller, wire.PollRequest{}))
	require.NoError(t, e.RecordPoll(ctx, m.caller, wire.PollRequest{}))
	require.Equal(t, []string{"node first_poll 2", "reissue first_poll 2"}, e.signals(id))
	require.True(t, progress().Polled)
	_, err = e.ClaimToken(ctx, c)
	requireKind(t, err, schema.KindTokenConsumed, "token_used")
	m.adopt(m.renewed(m.k(4)))
	m.use()
	m.adopt(m.recovered(m.k(5)))
	m.use()
	rows := e.audit(id)
	require.Zero(t, count(rows, "nodes.reissue_enrollment succeeded"), "its operation has not ended")
}

func TestTasksOfAnOlderIncarnation(t *testing.T) {
	e := setup(t)
	m := e.machine()
	f := e.claim(m.caller.NodeID, lifecycle.ActionProvision).Fence
	task := e.dispatch(f, "facts", task.FactsCollect)
	old := m.caller
	e.reissue(m, m.k(2))
	e.takeNone(m.caller)
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM node_tasks WHERE task_id = $1 AND status = 'pending'", task.TaskID))
	require.NoError(t, e.Void(t.Context(), f))
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM node_tasks WHERE task_id = $1 AND status = 'cancelled'", task.TaskID))
	requireKind(t, e.heartbeat(old, wire.Heartbeat{}), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
}

func TestReissueInEveryState(t *testing.T) { //nolint:tparallel // the cases follow each other in one database
	e := setup(t)
	ctx := t.Context()
	for _, s := range lifecycle.NodeStates() {
		t.Run(string(s), func(t *testing.T) {
			n := e.inState(s)
			_, refusal := lifecycle.CheckStart(lifecycle.ActionReissueEnrollment, s)
			token := mint(n.ID, trust.PurposeReissue)
			err := e.IssueToken(ctx, token, operator)
			if refusal != nil {
				require.EqualError(t, err, refusal.Error())
				require.Contains(t, e.audit(n.ID), "nodes.token_issued refused invalid_state")
				requireKind(t, e.IssueFetch(ctx, mint(n.ID, trust.PurposeReissue), operator), schema.KindInvalidRequest, "invalid_state")
				require.Zero(t, e.number("SELECT count(*) FROM enrollment_tokens WHERE node_id = $1", n.ID))
				return
			}
			require.NoError(t, err)
			for _, blocked := range []lifecycle.NodeState{lifecycle.NodeDraining, lifecycle.NodeTerminating, lifecycle.NodeRemoving} {
				e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", n.ID, blocked)
				_, err = e.ClaimToken(ctx, tokenClaim(n.ID, token.TokenID, token.Hash, key(n.ID, 1)))
				requireKind(t, err, schema.KindInvalidRequest, "invalid_state")
			}
			e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", n.ID, s)
			m := &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID}}
			m.enroll(token.TokenID, token.Hash, m.k(1))
			require.Equal(t, s, e.node(n.ID).State)
			require.Equal(t, int64(2), m.caller.Incarnation)
		})
	}
	requireKind(t, e.IssueToken(ctx, mint(schema.NewID(), trust.PurposeReissue), operator), schema.KindNotFound, "")
	requireKind(t, e.IssueToken(ctx, mint(e.register().ID, trust.PurposeRecover), operator), schema.KindInvalidRequest, "token_purpose")
}

func TestReissueWaitsForADrainAndARemoval(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	for _, a := range []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionRetire, lifecycle.ActionRemove} {
		m := e.machine()
		id := m.caller.NodeID
		if a == lifecycle.ActionRemove {
			e.exec("UPDATE nodes SET state = 'retired' WHERE node_id = $1", id)
		}
		prior := e.node(id).State
		tokenID, hash := e.reissued(id)
		op := e.claim(id, a)
		e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", id, prior) // while its operation is open
		reason := string(a) + "_open"
		requireKind(t, e.IssueToken(ctx, mint(id, trust.PurposeReissue), operator), schema.KindOperationInProgress, reason)
		_, err := e.Claim(ctx, reissueRequest(id))
		requireKind(t, err, schema.KindOperationInProgress, reason)
		_, err = e.ClaimToken(ctx, tokenClaim(id, tokenID, hash, m.k(2)))
		requireKind(t, err, schema.KindOperationInProgress, reason)
		require.Contains(t, e.audit(id), "nodes.reissue_enrollment refused "+reason)
		m.use()

		require.NoError(t, e.Finish(ctx, op.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: prior}))
		m.enroll(tokenID, hash, m.k(2)) // the token waited
	}
}

func TestReissueVoidsWhatItReplaces(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	enrollID, enrollHash := e.token(n.ID)
	fetch := mint(n.ID, trust.PurposeEnroll)
	require.NoError(t, e.IssueFetch(ctx, fetch, operator))
	firstID, firstHash := e.reissued(n.ID)
	chain := e.chain(n.ID)
	last := chain[len(chain)-1]
	require.Equal(t, "nodes.token_issued", last.Action)
	require.Equal(t, "reissue", last.Detail["purpose"])
	require.Equal(t, fmt.Sprintf("enroll:%s fetch:%s", enrollID, fetch.TokenID), last.Detail["voided"])
	require.Equal(t, "bootstrap_issued", last.Detail["from"])
	_, err := e.ClaimToken(ctx, tokenClaim(n.ID, enrollID, enrollHash, key(n.ID, 1)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	_, _, err = e.UseFetch(ctx, fetch.TokenID, fetch.Hash, operator)
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")

	e.reissued(n.ID)
	_, err = e.ClaimToken(ctx, tokenClaim(n.ID, firstID, firstHash, key(n.ID, 1)))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	require.Equal(t, "gpuaas node reissue-enrollment "+n.Host, schema.AsError(err).Next)
	for _, err := range race(20, func(int) error { return e.IssueToken(ctx, mint(n.ID, trust.PurposeReissue), operator) }) {
		require.NoError(t, err)
	}
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM enrollment_tokens WHERE state = 'issued'"))
	e.token(n.ID)
	require.Zero(t, e.number("SELECT count(*) FROM enrollment_tokens WHERE state = 'issued' AND purpose = 'reissue'"), "an enrollment replaces it too")
}

func TestReissueUnlocks(t *testing.T) {
	e := setup(t)
	m := e.machine()
	old := m.held()
	m.adopt(m.renewed(m.k(2)))
	m.use()
	e.pass()
	m.refused(old, schema.ReasonNodeLocked)

	tokenID, hash := e.reissued(m.caller.NodeID)
	require.True(t, e.locked(m.caller.NodeID), "until the claim")
	m.enroll(tokenID, hash, m.k(3))
	require.False(t, e.locked(m.caller.NodeID))
	m.refused(old, schema.ReasonIdentityMismatch)
	m.adopt(m.renewed(m.k(4)))
	m.use()

	n := e.register()
	enrollID, enrollHash := e.token(n.ID)
	e.exec("UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'x' WHERE node_id = $1", n.ID)
	_, err := e.ClaimToken(t.Context(), tokenClaim(n.ID, enrollID, enrollHash, key(n.ID, 1)))
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	requireKind(t, e.IssueToken(t.Context(), mint(n.ID, trust.PurposeEnroll), operator), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
}

func TestReissueSignalsOpenEnrollment(t *testing.T) {
	e := setup(t)
	n := e.register()
	claim := e.claim(n.ID, lifecycle.ActionEnroll)
	e.token(n.ID)
	_, err := e.Claim(t.Context(), reissueRequest(n.ID))
	require.NoError(t, err)
	m := &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID}}
	e.reissue(m, m.k(1))
	require.Equal(t, []string{"node bundle_issued 1", "node bundle_issued 2", "reissue bundle_issued 2",
		"node token_claimed 2", "reissue token_claimed 2", "node first_poll 2", "reissue first_poll 2"}, e.signals(n.ID))
	require.NoError(t, e.Finish(t.Context(), claim.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
}

func reissueRequest(nodeID string) activities.ClaimRequest {
	return request(nodeID, lifecycle.ActionReissueEnrollment)
}

func TestReissueDoesNotHoldNode(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	id := m.caller.NodeID
	r := reissueRequest(id)
	c, err := e.Claim(ctx, r)
	require.NoError(t, err)
	require.Zero(t, c.Fence.OpSeq)
	require.Equal(t, int64(1), c.Incarnation)
	again, err := e.Claim(ctx, r)
	require.NoError(t, err)
	require.Equal(t, c.Fence, again.Fence)
	require.Equal(t, lifecycle.ActionReissueEnrollment, e.node(id).Operation.Action)
	require.Zero(t, e.number("SELECT count(*) FROM nodes WHERE node_id = $1 AND operation_id IS NOT NULL", id))

	provision := e.claim(id, lifecycle.ActionProvision)
	require.Equal(t, int64(2), provision.Fence.OpSeq)
	require.Equal(t, lifecycle.ActionProvision, e.node(id).Operation.Action, "the one that holds the node is shown")
	before := e.node(id)
	rows := e.changes(id, func() {
		require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "claim",
			Instance: lifecycle.InstanceRunning, FactsTask: "facts",
			Stuck: &lifecycle.Stuck{Phase: "claim", Reason: "agent_silent"}}))
	})
	require.Equal(t, []string{"nodes.reissue_enrollment parked agent_silent"}, rows)
	require.Equal(t, before, e.node(id), "its progress is its own")
	_, err = e.Prepare(ctx, spec(c.Fence, "facts", task.FactsCollect), taskOwner("facts"))
	requireKind(t, err, schema.KindFenced, "")
	requireKind(t, e.Void(ctx, c.Fence), schema.KindFenced, "")
	_, err = e.Store.Operations.Plan(ctx, c.Fence, activities.Resource{ResourceID: schema.NewID(), Kind: "instance", Provider: "manual"})
	requireKind(t, err, schema.KindFenced, "")
	forged := provision.Fence
	forged.OpSeq = 0
	requireKind(t, e.Advance(ctx, forged, activities.Advance{Phase: "x"}), schema.KindFenced, "")
	requireKind(t, e.Finish(ctx, forged, activities.Finish{Status: lifecycle.OperationFailed}), schema.KindFenced, "")

	end := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired, DenyIdentity: true, Outcome: "back"}
	rows = e.changes(id, func() {
		for _, err := range race(10, func(int) error { return e.Finish(ctx, c.Fence, end) }) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"nodes.reissue_enrollment succeeded"}, rows)
	require.Equal(t, before, e.node(id))
	m.use()
	end.Status = lifecycle.OperationFailed
	requireKind(t, e.Finish(ctx, c.Fence, end), schema.KindFenced, "operation_over")
}

func TestOneReissueAtATime(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	id := e.machine().caller.NodeID
	for _, err := range race(20, func(int) error {
		_, err := e.Claim(ctx, reissueRequest(id))
		return err
	}) {
		require.NoError(t, err, "each run of the workflow supersedes the one before")
	}
	open := e.operations(id, true)
	require.Len(t, open, 1)

	n := e.machine().caller.NodeID
	first, err := e.Claim(ctx, reissueRequest(n))
	require.NoError(t, err)
	_, err = e.Claim(ctx, reissueRequest(n))
	require.NoError(t, err, "the workflow's next run means that the one before is dead")
	requireKind(t, e.Advance(ctx, first.Fence, activities.Advance{Phase: "x"}), schema.KindFenced, "operation_over")
	require.Contains(t, e.audit(n), "nodes.reissue_enrollment failed superseded")
	e.claim(n, lifecycle.ActionProvision)
	open = e.operations(n, true)
	require.Len(t, open, 2, "an operation of the node ends no reissue")
}

func TestCanceledReissue(t *testing.T) {
	t.Parallel()
	cancel := activities.Finish{Status: lifecycle.OperationCanceled, VoidTokens: true}
	t.Run("before the claim leaves the identity", func(t *testing.T) {
		e := setup(t)
		m := e.machine()
		c, err := e.Claim(t.Context(), reissueRequest(m.caller.NodeID))
		require.NoError(t, err)
		tokenID, hash := e.reissued(m.caller.NodeID)
		pending := m.renewed(m.k(2))
		require.NoError(t, e.Finish(t.Context(), c.Fence, cancel))
		_, err = e.ClaimToken(t.Context(), tokenClaim(m.caller.NodeID, tokenID, hash, m.k(3)))
		requireKind(t, err, schema.KindTokenConsumed, "token_voided")
		m.adopt(pending)
		m.use()
		m.adopt(m.recovered(m.k(4)))
		m.use()
	})
	t.Run("after it voids what the token bought", func(t *testing.T) {
		e := setup(t)
		m := e.machine()
		c, err := e.Claim(t.Context(), reissueRequest(m.caller.NodeID))
		require.NoError(t, err)
		tokenID, hash := e.reissued(m.caller.NodeID)
		claim := tokenClaim(m.caller.NodeID, tokenID, hash, m.k(2))
		claim.RecoveryKey = recoveryKey
		_, err = e.ClaimToken(t.Context(), claim)
		require.NoError(t, err)
		m.caller.Incarnation = 2
		m.adopt(m.issue(trust.IssuedByEnroll, tokenID, m.k(2)))
		require.NoError(t, e.Finish(t.Context(), c.Fence, cancel))
		m.refused(m.held(), schema.ReasonSerialSuperseded)
		requireKind(t, m.recover(m.k(3)), schema.KindTokenConsumed, "token_voided")
		e.reissue(m, m.k(4))
	})
}

func TestRemovalVoidsRecoveryAndReissue(t *testing.T) {
	e := setup(t)
	m := e.machine()
	e.exec("UPDATE nodes SET state = 'retired' WHERE node_id = $1", m.caller.NodeID)
	e.reissued(m.caller.NodeID)
	waiting, err := e.Claim(t.Context(), reissueRequest(m.caller.NodeID))
	require.NoError(t, err)
	f := e.claim(m.caller.NodeID, lifecycle.ActionRemove).Fence
	e.signals(m.caller.NodeID)
	require.NoError(t, e.Finish(t.Context(), f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved, DenyIdentity: true}))
	require.Equal(t, []string{"reissue node_removed 0"}, e.signals(m.caller.NodeID))
	progress, err := e.Enrollment(t.Context(), m.caller.NodeID)
	require.NoError(t, err)
	require.True(t, progress.Removed)
	require.NoError(t, e.Finish(t.Context(), waiting.Fence, activities.Finish{Status: lifecycle.OperationCanceled, VoidTokens: true}))
	require.Zero(t, e.number("SELECT count(*) FROM enrollment_tokens WHERE state IN ('issued', 'claimed')"))
	requireKind(t, m.recover(m.k(2)), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	_, err = e.Claim(t.Context(), reissueRequest(m.caller.NodeID))
	requireKind(t, err, schema.KindInvalidRequest, "invalid_state")
}

func TestReissueRacesOnTwoReplicas(t *testing.T) {
	e := setup(t)
	second, err := store.Open(t.Context(), store.Config{URL: e.url, MaxConns: 20})
	require.NoError(t, err)
	t.Cleanup(second.Close)
	replicas := []*store.Store{e.Store, second}
	m := e.machine()
	for round := range 5 {
		tokenID, hash := e.reissued(m.caller.NodeID)
		won := 0
		for _, err := range race(40, func(i int) error {
			_, err := replicas[i%2].Identities.ClaimToken(t.Context(), tokenClaim(m.caller.NodeID, tokenID, hash, m.k(100*round+i%20)))
			return err
		}) {
			if err == nil {
				won++
				continue
			}
			requireKind(t, err, schema.KindTokenConsumed, "token_claimed")
		}
		require.Equal(t, 2, won, "one key, which asked twice")
		require.Equal(t, int64(round+2), e.node(m.caller.NodeID).Incarnation, "one claim, one incarnation")
	}
}

// Only the node that holds the lease of agent.new_identity gets a token for its next
// incarnation, and each token voids the one before.
func TestTokenForATask(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m, other := e.machine(), e.machine()
	id := m.caller.NodeID
	e.exec("UPDATE nodes SET state = 'drained' WHERE node_id = $1", id)
	claim := e.claim(id, lifecycle.ActionReactivate)
	e.signals(id)
	probe := e.dispatch(claim.Fence, "probe", task.NodeProbe)
	issue := func(c nodeapi.Caller, taskID string) (trust.MintedToken, error) {
		minted := mint(id, trust.PurposeReissue)
		minted.NodeID = c.NodeID
		expires, err := e.IssueForTask(ctx, c, taskID, minted, time.Minute)
		if err == nil {
			require.WithinDuration(t, time.Now().Add(time.Minute), expires, 30*time.Second)
		}
		return minted, err
	}
	_, err := issue(m.caller, probe.TaskID)
	requireKind(t, err, schema.KindLeaseLost, "")
	e.take(m.caller, task.LeaseDuration)
	_, err = issue(m.caller, probe.TaskID)
	requireKind(t, err, schema.KindLeaseLost, "")
	_, err = e.Result(ctx, m.caller, probe.TaskID, succeeded(1, inventory.ProbeReport{}))
	require.NoError(t, err)

	row := e.dispatch(claim.Fence, "identity", task.NewIdentity)
	_, err = issue(m.caller, row.TaskID)
	requireKind(t, err, schema.KindLeaseLost, "")
	e.take(m.caller, task.LeaseDuration)
	_, err = issue(other.caller, row.TaskID)
	requireKind(t, err, schema.KindNotFound, "")
	first, err := issue(m.caller, row.TaskID)
	require.NoError(t, err)
	second, err := issue(m.caller, row.TaskID)
	require.NoError(t, err)
	require.Equal(t, "voided", e.tokenStateOf(first.TokenID))
	m.use() // the identity is good until the claim
	_, err = e.Result(ctx, m.caller, row.TaskID, succeeded(1, struct{}{}))
	require.NoError(t, err)
	_, err = issue(m.caller, row.TaskID)
	requireKind(t, err, schema.KindLeaseLost, "")

	e.signals(id)
	old := *m
	m.enroll(second.TokenID, second.Hash, m.k(2))
	require.Equal(t, int64(2), m.caller.Incarnation)
	require.Equal(t, []string{"node token_claimed 2", "node first_poll 2"}, e.signals(id))
	old.refused(old.held(), schema.ReasonIdentityMismatch)
	require.Equal(t, "voided", e.tokenStateOf(old.recovery.TokenID))
	require.Equal(t, 3, count(e.audit(id), "nodes.token_issued succeeded"), "that of the enrollment, and two of the task")
}
