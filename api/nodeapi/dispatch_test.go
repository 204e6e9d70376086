package nodeapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// fakeTrust is the Grants, VerifierSets and Heartbeater of a test.
type fakeTrust struct {
	mu         sync.Mutex
	why        error // Ready and Sign return it
	repaired   chan struct{}
	replaced   chan struct{}
	grants     []task.Grant
	sets       []trust.StoredSet
	answer     func(task.Owner, nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error)
	heartbeats []nodeapi.TaskHeartbeat
}

func newFakeTrust() *fakeTrust {
	return &fakeTrust{repaired: make(chan struct{}), replaced: make(chan struct{}), sets: []trust.StoredSet{aSet(1)}}
}

func aSet(version int64) trust.StoredSet {
	text, _ := json.Marshal(version)
	return trust.StoredSet{Version: version, Hash: strings.Repeat("0123", 16), Document: text}
}

func (f *fakeTrust) fail(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
	if why == nil {
		close(f.repaired)
		f.repaired = make(chan struct{})
	}
}

func (f *fakeTrust) Ready() (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.repaired, f.why
}

func (f *fakeTrust) Sign(g task.Grant) (grant, key json.RawMessage, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grants = append(f.grants, g)
	return json.RawMessage(`{"signed":1}`), json.RawMessage(`{"delegation":1}`), f.why
}

func (f *fakeTrust) NewestSet(context.Context) (trust.StoredSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sets) == 0 {
		return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "none")
	}
	return f.sets[len(f.sets)-1], nil
}

func (f *fakeTrust) AcceptedKeys() []string { return nil }

func (f *fakeTrust) Replaced() <-chan struct{} { return f.replaced }

func (f *fakeTrust) SetsAfter(_ context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []trust.StoredSet
	for _, s := range f.sets {
		if s.Version > version && len(out) < limit {
			out = append(out, s)
		}
	}
	return out, nil
}

func (f *fakeTrust) setSets(sets ...trust.StoredSet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sets = sets
}

func (f *fakeTrust) RecordHeartbeat(_ context.Context, o task.Owner, b nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heartbeats = append(f.heartbeats, b)
	return f.answer(o, b)
}

// The grant binds the offer to this poll of this node.
func TestGrant(t *testing.T) {
	o := offer()
	o.NodeState, o.OpSeq, o.Lease.Epoch = lifecycle.NodeDraining, 7, 3
	var asked wire.PollRequest
	s := newSite(t, &fakeStore{nextFor: func(a wire.PollRequest) (*nodeapi.Dispatch, error) { asked = a; return o, nil }})
	a := receive(t, s.poll(t.Context()))
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	assert.Equal(t, pollRequest(), asked)
	digest := sha256.Sum256([]byte("{}")) // the body, not its base64
	require.Len(t, s.trust.grants, 1)
	assert.Equal(t, task.Grant{
		V: 1, Env: env, NodeID: s.node.NodeID, Incarnation: 1, Nonce: asked.Nonce, ServerTime: o.ServerTime,
		TaskID: o.TaskID, EnvelopeSHA256: hex.EncodeToString(digest[:]), LeaseEpoch: 3, LeaseUntil: o.Lease.ExpiresAt,
		NodeState: lifecycle.NodeDraining, OpSeq: 7, SetVersion: 1, SetHash: aSet(1).Hash,
	}, s.trust.grants[0])
	assert.Equal(t, "1:"+aSet(1).Hash, a.header.Get(wire.HeaderVerifierSet))
}

// While no lease grant can be signed, polls stay open, no task is leased and
// heartbeats are stored. Polls retry as soon as grants are available.
func TestNoDispatchWithoutGrant(t *testing.T) {
	var looks, stored atomic.Int64
	s := newSite(t, &fakeStore{
		next:      func([]string) (*nodeapi.Dispatch, error) { looks.Add(1); return offer(), nil },
		heartbeat: func(nodeapi.Caller, wire.Heartbeat) error { stored.Add(1); return nil },
	})
	s.trust.fail(schema.NewError(schema.KindServiceUnavailable, "no delegation"))
	polled := s.poll(t.Context())
	s.parked(1)
	harness.Eventually(t, "one is withheld", func() bool { return s.metric("gpuaas_tasks_withheld_total") == 1 })
	s.wakes.wake(s.node.NodeID)
	harness.Eventually(t, "two are withheld", func() bool { return s.metric("gpuaas_tasks_withheld_total") == 2 })
	short := receive(t, s.poll(t.Context(), waitFor(0), func(r *wire.PollRequest) { r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady} }))
	assert.Equal(t, http.StatusNoContent, short.status)
	assert.Equal(t, int64(1), stored.Load())
	assert.Zero(t, looks.Load())
	s.trust.fail(nil)
	assert.Equal(t, http.StatusOK, receive(t, polled).status)
	assert.Equal(t, int64(1), looks.Load())
}

func TestNoDispatchWithoutVerifierSet(t *testing.T) {
	s := newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) { return offer(), nil }})
	s.trust.setSets()
	a := receive(t, s.poll(t.Context(), waitFor(0)))
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Empty(t, a.header.Get(wire.HeaderVerifierSet))
	s.trust.setSets(aSet(1))
	assert.Equal(t, http.StatusOK, receive(t, s.poll(t.Context(), waitFor(0))).status)
}

func TestVerifierSets(t *testing.T) {
	s := newSite(t, &fakeStore{})
	var all []trust.StoredSet
	for v := range int64(70) {
		all = append(all, aSet(v+1))
	}
	s.trust.setSets(all...)
	c := s.client(s.cert())
	walk := func(query string) trust.VerifierSets {
		a := call(t, c, http.MethodGet, s.path("/verifier-sets"+query), nil)
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		var sets trust.VerifierSets
		require.NoError(t, json.Unmarshal(a.body, &sets))
		return sets
	}
	first := walk("")
	require.Len(t, first.Sets, 64)
	assert.JSONEq(t, "1", string(first.Sets[0]))
	rest := walk("?after=64")
	require.Len(t, rest.Sets, 6)
	assert.JSONEq(t, "65", string(rest.Sets[0]))
	none := call(t, c, http.MethodGet, s.path("/verifier-sets?after=70"), nil)
	assert.JSONEq(t, `{"sets":[]}`, string(none.body))
	for query, reason := range map[string]string{
		"?after=": "bad_after", "?after=-1": "bad_after", "?after=x": "bad_after", "?after=007": "bad_after", "?after=1&after=2": "bad_query",
	} {
		assert.Equal(t, reason, call(t, c, http.MethodGet, s.path("/verifier-sets"+query), nil).refusal(t).Reason, query)
	}
	a := receive(t, s.poll(t.Context(), waitFor(0)))
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Equal(t, "70:"+aSet(70).Hash, a.header.Get(wire.HeaderVerifierSet), "without a task too")
}

// A progress call heartbeats the activity. The activity's state reaches the agent
// in the response and is stored once. A heartbeat error fails no progress call.
func TestProgressHeartbeatsActivity(t *testing.T) {
	owner := task.Owner{WorkflowID: "w", RunID: "r", ActivityID: "a"}
	nodeTask := schema.NewID()
	type row struct {
		due          bool
		previous     wire.ProgressResponse
		state        nodeapi.ActivityState
		heartbeatErr error
		storeErr     error
		want         wire.ProgressResponse
		heartbeats   int
		stored       []nodeapi.ActivityState
		noteInLogs   string
	}
	lost := errors.New("no temporal")
	for name, r := range map[string]row{
		"not due":                 {},
		"nothing new":             {due: true, heartbeats: 1},
		"paused":                  {due: true, heartbeats: 1, state: nodeapi.ActivityState{Paused: true}, want: wire.ProgressResponse{Paused: true}, stored: []nodeapi.ActivityState{{Paused: true}}},
		"paused as before":        {due: true, heartbeats: 1, previous: wire.ProgressResponse{Paused: true}, state: nodeapi.ActivityState{Paused: true}, want: wire.ProgressResponse{Paused: true}},
		"paused, not due":         {previous: wire.ProgressResponse{Paused: true}, want: wire.ProgressResponse{Paused: true}},
		"unpaused":                {due: true, heartbeats: 1, previous: wire.ProgressResponse{Paused: true}, stored: []nodeapi.ActivityState{{}}},
		"canceled":                {due: true, heartbeats: 1, state: nodeapi.ActivityState{Cancel: true}, want: wire.ProgressResponse{Cancel: true}, stored: []nodeapi.ActivityState{{Cancel: true}}},
		"operator's cancel":       {due: true, heartbeats: 1, previous: wire.ProgressResponse{Cancel: true}, want: wire.ProgressResponse{Cancel: true}, stored: []nodeapi.ActivityState{{}}},
		"temporal unavailable":    {due: true, heartbeats: 1, previous: wire.ProgressResponse{Paused: true}, heartbeatErr: lost, want: wire.ProgressResponse{Paused: true}, noteInLogs: "heartbeat_error"},
		"storing the state fails": {due: true, heartbeats: 1, state: nodeapi.ActivityState{Cancel: true}, storeErr: lost, want: wire.ProgressResponse{Cancel: true}, stored: []nodeapi.ActivityState{{Cancel: true}}, noteInLogs: "activity_state_error"},
	} {
		t.Run(name, func(t *testing.T) {
			var stored []nodeapi.ActivityState
			s := newSite(t, &fakeStore{
				progressed: func(p task.Progress) (nodeapi.ProgressResult, error) {
					out := nodeapi.ProgressResult{Response: r.previous}
					if r.due {
						out.Owner = &owner
					}
					return out, nil
				},
				setState: func(id string, b nodeapi.ActivityState) error {
					assert.Equal(t, nodeTask, id)
					stored = append(stored, b)
					return r.storeErr
				},
			})
			s.trust.answer = func(o task.Owner, b nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
				assert.Equal(t, owner, o)
				assert.Equal(t, nodeapi.TaskHeartbeat{Status: task.Running, Message: "half", Epoch: 2}, b)
				return r.state, r.heartbeatErr
			}
			a := call(t, s.client(s.cert()), http.MethodPost, s.path("/tasks/"+nodeTask+"/progress"), task.Progress{LeaseEpoch: 2, Message: "half"})
			require.Equal(t, http.StatusOK, a.status, string(a.body))
			var got wire.ProgressResponse
			require.NoError(t, json.Unmarshal(a.body, &got))
			assert.Equal(t, r.want, got)
			assert.Len(t, s.trust.heartbeats, r.heartbeats)
			assert.Equal(t, r.stored, stored)
			if r.noteInLogs != "" {
				harness.Eventually(t, r.noteInLogs, func() bool { return strings.Contains(s.log.String(), r.noteInLogs) })
			}
		})
	}
}
