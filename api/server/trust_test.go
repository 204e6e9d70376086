package server

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// opened checks an envelope's only signature with a key and decodes its body.
func opened(t *testing.T, envelope json.RawMessage, payloadType string, public []byte, v any) {
	t.Helper()
	var e dsse.Envelope
	require.NoError(t, json.Unmarshal(envelope, &e))
	require.Equal(t, payloadType, e.PayloadType)
	body, err := e.DecodeB64Payload()
	require.NoError(t, err)
	require.Len(t, e.Signatures, 1)
	signature, err := base64.StdEncoding.DecodeString(e.Signatures[0].Sig)
	require.NoError(t, err)
	require.True(t, ed25519.Verify(public, dsse.PAE(payloadType, body), signature))
	require.NoError(t, schema.DecodeStrict(body, 1<<16, v))
}

// A node can verify a dispatch from the set's key down to its own nonce, and tasks
// are dispatched while Vault is sealed.
func TestDispatchWhileVaultIsSealed(t *testing.T) {
	c, server, client := realVault(t)
	r := c.replica()
	m := r.enrolled()
	_, attach := r.task(m)
	harness.Eventually(t, "a lease key", func() bool { _, err := c.grants.Ready(); return err == nil })
	server.Seal(t)
	defer server.Unseal(t)
	attach()
	poll := pollRequest(wire.MaxPollTimeout)
	a := r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/wait"), poll)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	var offer wire.TaskOffer
	a.into(t, &offer)

	trusted, err := client.TaskTrust(t.Context())
	require.NoError(t, err)
	var key trust.LeaseKey
	opened(t, offer.GrantKey, trust.LeaseKeyPayloadType, trusted.Keys[0].Public, &key)
	var grant task.Grant
	opened(t, offer.Grant, trust.LeasePayloadType, key.Public, &grant)
	assert.Equal(t, poll.Nonce, grant.Nonce)
	assert.Equal(t, offer.TaskID, grant.TaskID)
	assert.Equal(t, m.id, grant.NodeID)
	assert.Equal(t, lifecycle.NodeDraining, grant.NodeState)
	assert.Equal(t, r.fence(m.id).OpSeq, grant.OpSeq)
	assert.Equal(t, trust.VerifierSetRef{Version: grant.SetVersion, Hash: grant.SetHash}, trusted.Floor)
	assert.Equal(t, trusted.Floor.String(), a.header.Get(wire.HeaderVerifierSet))

	var node wire.NodeView
	r.ask(http.MethodGet, "/nodes/"+m.id, nil).into(t, &node)
	assert.Equal(t, int64(1), node.SetVersion)
	assert.Equal(t, int64(1), node.NewestSetVersion)

	view, err := r.store.Tasks.Task(t.Context(), offer.TaskID)
	require.NoError(t, err)
	assert.Equal(t, "boot-1700000000", view.Holder)
}

// A published set reaches every replica at once.
func TestSetsReachEveryReplica(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	m := a.enrolled()
	second := setAfter(firstSet())
	require.NoError(t, a.store.Identities.PutSet(t.Context(), second, audit.Subject{Actor: "test"}))
	for _, r := range []*replica{a, b} {
		harness.Eventually(t, "the new set", func() bool {
			return r.wait(m, 0).header.Get(wire.HeaderVerifierSet) == "2:"+second.Hash
		})
		var sets trust.VerifierSets
		r.call(r.client(m.cert), http.MethodGet, r.url(m, "/verifier-sets?after=1"), nil).into(t, &sets)
		require.Len(t, sets.Sets, 1)
		assert.JSONEq(t, string(second.Document), string(sets.Sets[0]))
	}
}

// With 200 open polls at two replicas, the connections for notifications are cut
// and tasks are stored for all nodes: each task is dispatched once.
func TestLostNotificationsMissNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("60 nodes")
	}
	const nodes = 60
	c := newCluster(t)
	replicas := []*replica{c.replica(), c.replica()}
	machines := make([]machine, nodes)
	offers := make([]func(), nodes)
	want := map[string]bool{}
	for i := range nodes {
		machines[i] = replicas[i%2].enrolled()
		taskID, attach := replicas[(i+1)%2].task(machines[i])
		want[taskID], offers[i] = true, attach
	}
	polls := make([]<-chan reply, nodes) // begun together, because a poll ends after a minute
	for i, m := range machines {
		polls[i] = replicas[i%2].poll(m)
	}
	for _, r := range replicas {
		r.parked(nodes / 2)
	}
	conn, err := pgx.Connect(t.Context(), c.url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var cut int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE application_name = 'gpuaas-listener' AND datname = current_database()`).Scan(&cut))
	require.Equal(t, len(replicas), cut)
	for _, attach := range offers {
		attach()
	}
	for _, polled := range polls {
		got := receive(t, polled)
		require.Equal(t, http.StatusOK, got.status, string(got.body))
		var offer wire.TaskOffer
		got.into(t, &offer)
		assert.True(t, want[offer.TaskID], "%s came twice or was not asked for", offer.TaskID)
		delete(want, offer.TaskID)
		assert.Equal(t, int64(1), offer.Lease.Epoch)
	}
	assert.Empty(t, want)
}

// fakeHeartbeats is an activity that a test pauses or cancels.
type fakeHeartbeats struct {
	mu     sync.Mutex
	answer nodeapi.ActivityState
	err    error
	owners []task.Owner
}

func (f *fakeHeartbeats) RecordHeartbeat(_ context.Context, o task.Owner, _ nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owners = append(f.owners, o)
	return f.answer, f.err
}

func (f *fakeHeartbeats) set(a nodeapi.ActivityState, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer, f.err = a, err
}

func (f *fakeHeartbeats) made() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.owners)
}

// A pause is learned with one heartbeat and reported at every replica until the
// next. The number of heartbeats does not grow with the replicas, and progress
// succeeds while Temporal is unavailable.
func TestPauseReachesTheAgent(t *testing.T) {
	c := newCluster(t)
	heartbeats := &fakeHeartbeats{answer: nodeapi.ActivityState{Paused: true}}
	c.heartbeats = heartbeats
	a, b := c.replica(), c.replica()
	m := a.enrolled()
	taskID, attach := a.task(m)
	attach()
	var offer wire.TaskOffer
	a.wait(m, 5*time.Second).into(t, &offer)
	progress := func(r *replica) wire.ProgressResponse {
		got := r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/"+taskID+"/progress"), task.Progress{LeaseEpoch: offer.Lease.Epoch, Message: "half"})
		require.Equal(t, http.StatusOK, got.status, string(got.body))
		var answer wire.ProgressResponse
		got.into(t, &answer)
		return answer
	}
	due := func() { c.exec("UPDATE node_tasks SET beat_at = now() - interval '1 minute'") }
	due()
	assert.True(t, progress(a).Paused)
	assert.True(t, progress(b).Paused, "noted")
	assert.True(t, progress(a).Paused)
	assert.Equal(t, 1, heartbeats.made())
	assert.Equal(t, []task.Owner{{WorkflowID: lifecycle.NodeWorkflowID("gpu-17", m.id), RunID: "run", ActivityID: "probe"}}, heartbeats.owners)

	due()
	heartbeats.set(nodeapi.ActivityState{}, schema.NewError(schema.KindServiceUnavailable, "Temporal is unavailable"))
	assert.True(t, progress(b).Paused, "the last answer applies")
	due()
	heartbeats.set(nodeapi.ActivityState{}, nil)
	assert.False(t, progress(b).Paused)
	assert.False(t, progress(a).Paused)
	due()
	heartbeats.set(nodeapi.ActivityState{Cancel: true}, nil)
	assert.True(t, progress(a).Cancel)
	assert.True(t, progress(b).Cancel)
	assert.Equal(t, 4, heartbeats.made())
}

// Operators list tasks and decide about them. A decision that the status does not
// allow is refused with 409, naming the allowed ones.
func TestTasksForOperators(t *testing.T) {
	c := newCluster(t)
	r := c.replica()
	m := r.enrolled()
	taskID, attach := r.task(m)
	attach()
	var list wire.TaskList
	r.ask(http.MethodGet, "/tasks?node="+m.id, nil).into(t, &list)
	require.Len(t, list.Tasks, 1)
	assert.Equal(t, taskID, list.Tasks[0].TaskID)
	assert.Equal(t, task.Pending, list.Tasks[0].Status)

	refused := r.ask(http.MethodPost, "/tasks/"+taskID+"/resume", wire.TaskDecision{Reason: "why not"})
	assert.Equal(t, http.StatusConflict, refused.status)
	assert.Equal(t, schema.KindTaskStatus, refused.refusal(t).Code)
	assert.Contains(t, refused.refusal(t).Message, "allowed now: cancel")

	var offer wire.TaskOffer
	r.wait(m, 5*time.Second).into(t, &offer)
	asked := r.ask(http.MethodPost, "/tasks/"+taskID+"/cancel", wire.TaskDecision{Reason: "wrong node"})
	require.Equal(t, http.StatusOK, asked.status, string(asked.body))
	var view wire.TaskView
	asked.into(t, &view)
	assert.Equal(t, "wrong node", view.CancelRequested)
	var answer wire.ProgressResponse
	r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/"+taskID+"/progress"), task.Progress{LeaseEpoch: offer.Lease.Epoch}).into(t, &answer)
	assert.True(t, answer.Cancel)

	c.exec("UPDATE node_tasks SET status = 'lost', cancel_reason = '', cancel_requested_at = NULL")
	require.Equal(t, http.StatusOK, r.ask(http.MethodPost, "/tasks/"+taskID+"/cancel", wire.TaskDecision{Reason: "no longer needed"}).status)
	r.ask(http.MethodGet, "/tasks/"+taskID, nil).into(t, &view)
	over := r.ask(http.MethodPost, "/tasks/"+taskID+"/resume", wire.TaskDecision{Reason: "why not"})
	assert.Equal(t, http.StatusConflict, over.status)
	assert.Equal(t, http.StatusNotFound, r.ask(http.MethodGet, "/tasks/"+schema.NewID(), nil).status)

	var page wire.AuditStreamPage
	r.ask(http.MethodGet, "/audit/streams/"+m.id+"?limit=1000", nil).into(t, &page)
	cancels := 0
	for _, e := range page.Events {
		if e.Action == audit.TaskCancel {
			cancels++
			assert.Equal(t, "admin-token", e.Actor)
			assert.Equal(t, taskID, e.Target)
		}
	}
	assert.Positive(t, cancels)
}
