package server

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// lock locks or unlocks a node's identity.
func (r *replica) lock(m machine, verb, reason string) reply {
	r.tb.Helper()
	return r.ask(http.MethodPost, "/nodes/"+m.id+"/"+verb, wire.NodeChange{Reason: reason})
}

// pollAs polls as an agent process in the background.
func (r *replica) pollAs(m machine, session string, seq int64, wait time.Duration) <-chan reply {
	poll := pollRequest(wait)
	poll.AgentSession, poll.PollSeq = session, seq
	c, out := r.client(m.cert), make(chan reply, 1)
	go func() {
		a, err := send(r.tb.Context(), c, http.MethodPost, r.url(m, "/tasks/wait"), poll)
		if err != nil {
			a.body = []byte(err.Error())
		}
		out <- a
	}()
	return out
}

// An operator's lock ends the open polls of two replicas, one of which receives no
// notification, and both refuse the node. The same identity is accepted after the unlock.
func TestLockReachesEveryReplica(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, deaf := c.replica(), c.replica()
	m, other := a.enrolled(), a.enrolled()
	polls := []<-chan reply{a.poll(m), deaf.poll(m)}
	a.parked(1)
	deaf.parked(1)
	deaf.deafen()
	got := a.lock(m, "lock", "")
	a.refusal(got, schema.KindInvalidRequest, "bad_reason")
	got = a.lock(m, "lock", "key found in an image")
	require.Equal(t, http.StatusOK, got.status, string(got.body))
	limit := time.Now().Add(revokedWithin)
	var locked wire.NodeView
	got.into(t, &locked)
	require.Equal(t, []string{trust.LockedByOperator, "admin-token", "key found in an image"},
		[]string{locked.IdentityLock.Reason, locked.IdentityLock.By, locked.IdentityLock.Note})
	for _, poll := range polls {
		a.refusal(within(t, time.Until(limit), poll, "the lock ends an open poll"), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	}
	for _, r := range []*replica{a, deaf} {
		r.refusal(r.wait(m, 0), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		require.Equal(t, http.StatusNoContent, r.wait(other, 0).status, "another node is served")
	}
	faults, err := a.store.Admin.Faults(t.Context())
	require.NoError(t, err)
	require.Len(t, faults, 1)
	assert.Equal(t, "gpuaas node unlock "+locked.Host+" --reason TEXT", faults[0].Next)

	got = deaf.lock(m, "unlock", "not exposed")
	require.Equal(t, http.StatusOK, got.status, string(got.body))
	for _, r := range []*replica{a, deaf} {
		require.Equal(t, http.StatusNoContent, r.wait(m, 0).status)
	}
	var page wire.AuditPage
	a.ask(http.MethodGet, "/audit?node="+m.id+"&actor=admin-token&action=nodes.lock,nodes.unlock", nil).into(t, &page)
	require.Len(t, page.Events, 2)
}

// A lock ends the lease of a running task: its progress is refused, a destructive task is
// recorded as lost, and no other task is dispatched. After the unlock the node reports the
// result.
func TestLockEndsLeases(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	r := c.replica()
	m := r.enrolled()
	id, attach := r.task(m)
	attach()
	c.exec("UPDATE node_tasks SET effect = 'destructive', type = 'workload.drain' WHERE task_id = $1", id)
	var offer wire.TaskOffer
	r.wait(m, 0).into(t, &offer)
	progress := func() reply {
		return r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/"+id+"/progress"), task.Progress{LeaseEpoch: offer.Lease.Epoch})
	}
	require.Equal(t, http.StatusOK, progress().status)
	_, more := r.task(m)
	more()
	require.Equal(t, http.StatusOK, r.lock(m, "lock", "stolen").status)
	r.refusal(progress(), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	r.refusal(r.wait(m, 0), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	c.exec("UPDATE node_tasks SET lease_until = now() - interval '10 minutes', beat_at = now() - interval '10 minutes' WHERE task_id = $1", id)
	_, err := r.store.Tasks.Reclaim(t.Context(), activities.ReclaimRequest{})
	require.NoError(t, err)
	view, err := r.store.Tasks.Task(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, task.Lost, view.Status)
	require.Equal(t, http.StatusOK, r.lock(m, "unlock", "checked").status)
	require.Equal(t, http.StatusOK, progress().status, "the holder of the newest lease continues")
}

// Two machines with one identity are detected from their polls at two replicas, long
// before a renewal. Once one has polled after the newer one, the server ends the open poll
// of the other process, which polls again if it still runs.
func TestTwoHoldersAreDetected(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	m := a.enrolled()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	locked := make(chan string, 2)
	agent := func(r *replica, session string) {
		for seq := int64(1); ctx.Err() == nil; seq++ {
			wait := wire.MaxPollTimeout
			if seq == 1 {
				wait = time.Second // nothing ends the first poll early
			}
			got := receive(t, r.pollAs(m, session, seq, wait))
			if got.status != http.StatusNoContent {
				locked <- got.refusal(t).Reason
				return
			}
			// The agent pauses after a poll that ended early.
			c.exec("UPDATE node_sessions SET returned_at = returned_at - interval '4 seconds' WHERE node_id = $1", m.id)
		}
	}
	go agent(a, "boot-1-real")
	harness.Eventually(t, "the poll of the first machine", func() bool { return a.metric("gpuaas_waiting_agents") == 1 })
	go agent(b, "boot-2-thief")
	for range 2 {
		require.Equal(t, schema.ReasonNodeLocked, within(t, task.LeaseDuration, locked, "the identity is locked"))
	}
	require.Equal(t, trust.LockedBySessions, a.show(m.id).IdentityLock.Reason)
	counts, err := a.store.Inventory.IdentityAttention(t.Context())
	require.NoError(t, err)
	require.Equal(t, []metrics.IdentityCount{{Reason: trust.LockedBySessions, Nodes: 1}}, counts)
}

// A restart of the agent over two replicas locks nothing: its last poll stays open, its
// response is lost, and the poll is repeated.
func TestRestartsLockNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	replicas := []*replica{c.replica(), c.replica()}
	m := replicas[0].enrolled()
	for i := range 20 {
		session := "boot-" + schema.NewID()
		for seq := range int64(3) {
			r := replicas[(i+int(seq))%2]
			repeated := []<-chan reply{r.pollAs(m, session, seq+1, 0), replicas[i%2].pollAs(m, session, seq+1, 0)}
			for _, p := range repeated {
				require.Equal(t, http.StatusNoContent, receive(t, p).status)
			}
		}
		last := replicas[i%2].pollAs(m, session, 9, time.Second) // open while the agent restarts
		harness.Eventually(t, "the last poll is open, or ended on a slow machine", func() bool {
			return replicas[i%2].metric("gpuaas_waiting_agents") == 1 || len(last) == 1
		})
		require.Equal(t, http.StatusNoContent, receive(t, replicas[(i+1)%2].pollAs(m, "boot-"+schema.NewID(), 1, 0)).status)
		require.Equal(t, http.StatusNoContent, receive(t, last).status)
		c.exec("UPDATE node_sessions SET first_at = first_at - interval '3 minutes' WHERE node_id = $1", m.id)
	}
	n := replicas[0].show(m.id)
	require.Nil(t, n.IdentityLock)
	require.Nil(t, n.IdentityAlarm)
}

// A replay of a used token locks nothing and alarms the operator.
func TestReplayedTokenRaisesAlarm(t *testing.T) {
	t.Parallel()
	r := newCluster(t).replica()
	h := r.holder()
	r.refusal(r.bare(h, "/enroll", h.enrollment(t, newKey(t))), schema.KindTokenConsumed, "token_used")
	r.works(h)
	n := r.show(h.id)
	require.Equal(t, trust.AlarmToken, n.IdentityAlarm.Reason)
	require.Equal(t, lifecycle.NodeActive, n.State)
	faults, err := r.store.Admin.Faults(t.Context())
	require.NoError(t, err)
	require.Len(t, faults, 1)
	assert.Contains(t, faults[0].Next, "gpuaas node lock "+n.Host)
}

// The node whose reissue token another machine claimed first proves itself by its recovery
// key. The other machine is locked out, and the next reissue gives the node its identity.
func TestThiefOfReissueIsLocked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	r := c.replica()
	h := r.holder()
	reissue := func() string {
		a := r.ask(http.MethodPost, "/nodes/"+h.id+"/reissue-enrollment", nil)
		require.Equal(t, http.StatusAccepted, a.status, string(a.body))
		var answer wire.LifecycleResponse
		a.into(t, &answer)
		return answer.RecoveryBundle.EnrollmentToken
	}
	h.bundle.EnrollmentToken = reissue()
	thief := &holder{machine: h.machine, recovery: newRecoveryKey(t)}
	key := newKey(t)
	thief.take(t, r.bare(thief, "/enroll", thief.enrollment(t, key)), key)
	r.works(thief)
	c.exec("UPDATE operations SET status = 'completed', ended_at = now() WHERE node_id = $1 AND ended_at IS NULL", h.id) // as its workflow does
	r.refusal(r.bare(h, "/enroll", h.enrollment(t, newKey(t))), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	r.refusal(r.wait(thief.machine, 0), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	require.Equal(t, trust.LockedByToken, r.show(h.id).IdentityLock.Reason)
	h.bundle.EnrollmentToken = reissue()
	key = newKey(t)
	h.take(t, r.bare(h, "/enroll", h.enrollment(t, key)), key)
	r.works(h)
}
