package nodeapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// poll polls in the background.
func (s *site) poll(ctx context.Context, changes ...func(*wire.PollRequest)) <-chan answer {
	c, out := s.client(s.cert()), make(chan answer, 1)
	go func() {
		a, err := try(ctx, c, http.MethodPost, s.path("/tasks/wait"), pollRequest(changes...))
		if err != nil {
			a.body = []byte(err.Error())
		}
		out <- a
	}()
	return out
}

// parked waits until the node has n open polls.
func (s *site) parked(n int) {
	s.tb.Helper()
	harness.Eventually(s.tb, "open polls", func() bool {
		return s.wakes.waiting(s.node.NodeID) == n && s.metric("gpuaas_waiting_agents") == float64(n)
	})
}

func receive[T any](tb testing.TB, ch <-chan T) T {
	tb.Helper()
	return harness.Receive(tb, "an answer", ch)
}

func offer() *nodeapi.Dispatch {
	now := time.Now().UTC().Truncate(time.Second)
	return &nodeapi.Dispatch{
		TaskOffer: wire.TaskOffer{TaskID: schema.NewID(), Envelope: json.RawMessage(`{"payload":"e30="}`),
			Lease: task.Lease{Epoch: 1, ExpiresAt: now.Add(task.LeaseDuration)}, ServerTime: now},
		Type: task.NodeProbe, CreatedAt: now.Add(-time.Second)}
}

func TestPollReturnsPendingTask(t *testing.T) {
	o := offer()
	s := newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) { return o, nil }})
	a := receive(t, s.poll(t.Context()))
	require.Equal(t, http.StatusOK, a.status)
	want := o.TaskOffer
	want.Grant, want.GrantKey = json.RawMessage(`{"signed":1}`), json.RawMessage(`{"delegation":1}`)
	text, err := json.Marshal(want)
	require.NoError(t, err)
	assert.JSONEq(t, string(text), string(a.body))
	assert.NotContains(t, string(a.body), "probe", "server state is not sent")
	assert.InDelta(t, 1, s.metric("gpuaas_task_dispatch_seconds"), 0)
	s.parked(0)
}

func TestPollEndsWithoutTask(t *testing.T) {
	s := newSite(t, &fakeStore{})
	for _, wait := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond} {
		a := receive(t, s.poll(t.Context(), waitFor(wait)))
		assert.Equal(t, http.StatusNoContent, a.status)
		assert.Empty(t, a.body)
	}
}

func TestWakeDispatchesTask(t *testing.T) {
	var ready atomic.Bool
	looks := make(chan struct{}, 8)
	s := newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) {
		defer func() { looks <- struct{}{} }()
		if ready.Load() {
			return offer(), nil
		}
		return nil, nil
	}})
	polled := s.poll(t.Context())
	s.parked(1)
	<-looks
	s.wakes.wake(schema.NewID())
	s.wakes.wake(s.node.NodeID) // there is no task: the poll stays open
	<-looks
	ready.Store(true)
	s.wakes.wake(s.node.NodeID)
	assert.Equal(t, http.StatusOK, receive(t, polled).status)
	s.parked(0)
}

func (f *fakeStore) CanceledTasks(_ context.Context, _ nodeapi.Caller, held []string) ([]string, error) {
	if f.canceled != nil {
		return f.canceled(held)
	}
	return nil, nil
}

// A woken poll returns the held tasks that were canceled. Without a wake it does
// not: tasks canceled earlier would end every poll at once.
func TestWokenPollReturnsCancellations(t *testing.T) {
	one, two := schema.NewID(), schema.NewID()
	var looks, reads atomic.Int32
	var canceled atomic.Pointer[[]string]
	next := func([]string) (*nodeapi.Dispatch, error) { looks.Add(1); return nil, nil }
	s := newSite(t, &fakeStore{next: next, canceled: func(held []string) ([]string, error) {
		assert.Equal(t, []string{one, two}, held)
		reads.Add(1)
		return *canceled.Load(), nil
	}})
	canceled.Store(&[]string{})
	polled := s.poll(t.Context(), holding(one, two))
	s.parked(1)
	s.wakes.wake(s.node.NodeID)
	harness.Eventually(t, "the first read", func() bool { return reads.Load() == 1 })
	canceled.Store(&[]string{two, one})
	s.wakes.wake(s.node.NodeID)
	a := receive(t, polled)
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Equal(t, two+","+one, a.header.Get(wire.HeaderCanceledTasks))
	assert.NotEmpty(t, a.header.Get(wire.HeaderVerifierSet))

	a = receive(t, s.poll(t.Context(), holding(one, two), waitFor(50*time.Millisecond)))
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Empty(t, a.header.Get(wire.HeaderCanceledTasks))
	assert.Equal(t, int32(2), reads.Load(), "not read without a wake")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	polled = s.poll(ctx)
	s.parked(1)
	for range 2 { // the second look follows the first read
		before := looks.Load()
		s.wakes.wake(s.node.NodeID)
		harness.Eventually(t, "a look for tasks", func() bool { return looks.Load() > before })
	}
	cancel()
	receive(t, polled)
	assert.Equal(t, int32(2), reads.Load(), "not read for a node without tasks")
}

// A task that is enqueued between the query and the wait is not missed, because
// the poll subscribes before both.
func TestPollMissesNoWake(t *testing.T) {
	var s *site
	looks := 0
	s = newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) {
		if looks++; looks == 1 {
			s.wakes.wake(s.node.NodeID) // enqueued right after the query
			return nil, nil
		}
		return offer(), nil
	}})
	assert.Equal(t, http.StatusOK, receive(t, s.poll(t.Context())).status)
}

func TestPollMissesNoFence(t *testing.T) {
	var s *site
	reads := 0
	s = newSite(t, &fakeStore{authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
		if reads++; reads == 1 {
			s.wakes.wake(s.node.NodeID)
			return nodeapi.Caller{NodeID: id.NodeID}, nil
		}
		return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "gone").WithReason(schema.ReasonNodeRemoved)
	}})
	a := receive(t, s.poll(t.Context()))
	assert.Equal(t, schema.ReasonNodeRemoved, a.refusal(t).Reason)
}

func TestFenceEndsPoll(t *testing.T) {
	var removed atomic.Bool
	s := newSite(t, &fakeStore{authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
		if removed.Load() {
			return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "gone").WithReason(schema.ReasonNodeRemoved)
		}
		return nodeapi.Caller{NodeID: id.NodeID}, nil
	}})
	polled := s.poll(t.Context())
	s.parked(1)
	removed.Store(true)
	s.wakes.wake(s.node.NodeID)
	a := receive(t, polled)
	assert.Equal(t, http.StatusUnauthorized, a.status)
	assert.Equal(t, schema.ReasonNodeRemoved, a.refusal(t).Reason)
	s.parked(0)
}

// A new verifier set ends the open polls, so that idle nodes have a revocation within seconds.
func TestNewSetEndsPolls(t *testing.T) {
	s := newSite(t, &fakeStore{})
	first, second := s.poll(t.Context()), s.poll(t.Context())
	s.parked(2)
	s.trust.setSets(aSet(1), aSet(2))
	close(s.trust.replaced)
	for _, polled := range []<-chan answer{first, second} {
		a := receive(t, polled)
		assert.Equal(t, http.StatusNoContent, a.status)
		assert.Equal(t, trust.VerifierSetRef{Version: 2, Hash: aSet(2).Hash}.String(), a.header.Get(wire.HeaderVerifierSet))
	}
}

// A poll that names an older set than the newest one ends soon, so that a node that was between two
// polls at the publication gets the set.
func TestPollBehindEndsSoon(t *testing.T) {
	s := newSite(t, &fakeStore{})
	s.trust.setSets(aSet(1), aSet(2))
	current := s.poll(t.Context(), func(r *wire.PollRequest) { r.VerifierSet = 2 })
	behind := s.poll(t.Context(), func(r *wire.PollRequest) { r.VerifierSet = 1 })
	assert.Equal(t, http.StatusNoContent, receive(t, behind).status)
	s.parked(1)
	require.NoError(t, s.server.Shutdown(t.Context()))
	receive(t, current)
}

func TestShutdownEndsPolls(t *testing.T) {
	s := newSite(t, &fakeStore{})
	first, second := s.poll(t.Context()), s.poll(t.Context())
	s.parked(2)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // shorter than a poll
	defer cancel()
	require.NoError(t, s.server.Shutdown(ctx))
	assert.Equal(t, http.StatusNoContent, receive(t, first).status)
	assert.Equal(t, http.StatusNoContent, receive(t, second).status)
}

func TestDisconnectedCallerUnsubscribes(t *testing.T) {
	s := newSite(t, &fakeStore{})
	ctx, cancel := context.WithCancel(t.Context())
	polled := s.poll(ctx)
	s.parked(1)
	cancel()
	receive(t, polled)
	s.parked(0)
	harness.Eventually(t, "the log line", func() bool { return strings.Contains(s.log.String(), `"status":499`) })
}

func TestInvalidPolls(t *testing.T) {
	s := newSite(t, &fakeStore{})
	c := s.client(s.cert())
	for reason, body := range map[string]any{
		"bad_nonce":         pollRequest(func(r *wire.PollRequest) { r.Nonce = "" }),
		"bad_agent_session": pollRequest(func(r *wire.PollRequest) { r.AgentSession = "" }),
		"bad_held_tasks":    pollRequest(holding("x")),
		"malformed_body":    `{"timeout":"55s"}`,
		"bad_text":          `{"agent_session":"a\u0000"}`,
		"too_large":         `{"nonce":"` + strings.Repeat("x", wire.MaxPollBytes) + `"}`,
	} {
		a := call(t, c, http.MethodPost, s.path("/tasks/wait"), body)
		assert.Equal(t, http.StatusBadRequest, a.status, reason)
		assert.Equal(t, reason, a.refusal(t).Reason)
	}
	s.parked(0)
}

// A request without a body checks only whether the node's identity is accepted. It
// dispatches nothing and is not recorded as a poll.
func TestProbeDispatchesNothing(t *testing.T) {
	s := newSite(t, &fakeStore{
		next: func([]string) (*nodeapi.Dispatch, error) {
			t.Error("a probe queried for a task")
			return offer(), nil
		},
		recordPoll: func() error {
			t.Error("a probe was recorded")
			return nil
		},
	})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for range 2 {
			a := call(t, s.client(s.cert()), method, s.path("/tasks/wait"), nil, "Authorization", "Bearer node-dev-token")
			assert.Equal(t, http.StatusNoContent, a.status, method)
			assert.NotEmpty(t, a.header.Get(wire.HeaderVerifierSet))
		}
		a := call(t, s.client(nil), method, s.path("/tasks/wait"), nil, "Authorization", "Bearer node-dev-token")
		assert.Equal(t, http.StatusUnauthorized, a.status, method)
		assert.Equal(t, schema.ReasonNoCertificate, a.refusal(t).Reason)
	}
}

// The agent backs off when the database fails while its poll is open.
func TestStoreFailureEndsPoll(t *testing.T) {
	var down atomic.Bool
	s := newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) {
		if down.Load() {
			return nil, schema.NewError(schema.KindServiceUnavailable, "Postgres does not answer")
		}
		return nil, nil
	}})
	polled := s.poll(t.Context())
	s.parked(1)
	down.Store(true)
	s.wakes.wake(s.node.NodeID)
	assert.Equal(t, http.StatusServiceUnavailable, receive(t, polled).status)
}

func TestResult(t *testing.T) {
	var got nodeapi.ReceivedResult
	stored := task.NodeProbe
	s := newSite(t, &fakeStore{result: func(r nodeapi.ReceivedResult) (task.Type, error) { got = r; return stored, nil }})
	c := s.client(s.cert())
	path := s.path("/tasks/" + schema.NewID() + "/result")
	a := call(t, c, http.MethodPost, path,
		`{"lease_epoch":2,"status":"succeeded","output":{"n":12345678901234567890,"s":"\ud800"},"started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}`)
	assert.Equal(t, http.StatusNoContent, a.status, string(a.body))
	assert.Equal(t, int64(2), got.LeaseEpoch)
	assert.JSONEq(t, `{"n":12345678901234567890,"s":"`+"\ufffd"+`"}`, string(got.Output), "numbers keep their digits, invalid text is replaced")
	stored = "" // the same result again
	call(t, c, http.MethodPost, path, task.Result{LeaseEpoch: 2, Status: task.Succeeded})
	assert.InDelta(t, 1, s.metric("gpuaas_tasks_total", "succeeded", "node.probe"), 0)

	big := `{"lease_epoch":1,"status":"succeeded","output":"` + strings.Repeat("x", wire.MaxOutput-len(`""`)) + `","started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}`
	assert.Equal(t, http.StatusNoContent, call(t, c, http.MethodPost, path, big).status)
	full := task.Result{LeaseEpoch: 1, Status: task.Failed, EnvelopeSHA256: strings.Repeat("0a", 32),
		OutputTail: strings.Repeat("ä", task.MaxOutputTail/2)}
	assert.Equal(t, http.StatusNoContent, call(t, c, http.MethodPost, path, full).status)
	assert.Equal(t, full.OutputTail, got.OutputTail)
	assert.Equal(t, full.EnvelopeSHA256, got.EnvelopeSHA256)
	for name, body := range map[string]string{
		"too_large":           `{"message":"` + strings.Repeat("x", wire.MaxResultBytes) + `"}`,
		"bad_output":          `{"lease_epoch":1,"status":"succeeded","output":"` + strings.Repeat("<", wire.MaxOutput/6+1) + `"}`,
		"bad_status":          `{"lease_epoch":1,"status":"lost"}`,
		"malformed_body":      `{"lease_epoch":1,"status":"succeeded","extra":1}`,
		"bad_text":            `{"lease_epoch":1,"status":"failed","message":"a\u0000"}`,
		"bad_output_tail":     `{"lease_epoch":1,"status":"failed","output_tail":"` + strings.Repeat("x", task.MaxOutputTail+1) + `"}`,
		"bad_envelope_sha256": `{"lease_epoch":1,"status":"failed","envelope_sha256":"` + strings.Repeat("A", 64) + `"}`,
	} {
		a := call(t, c, http.MethodPost, path, body)
		assert.Equal(t, http.StatusBadRequest, a.status)
		assert.Equal(t, name, a.refusal(t).Reason)
	}
	for number, status := range map[string]int{"1e308": http.StatusNoContent, "5e-324": http.StatusNoContent,
		"1e9999": http.StatusBadRequest, "1E-9999": http.StatusBadRequest, "1e99999999999999999999": http.StatusBadRequest,
		strings.Repeat("1", 500): http.StatusBadRequest} {
		body := `{"lease_epoch":1,"status":"succeeded","output":{"n":[` + number + `]},"started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}`
		assert.Equal(t, status, call(t, c, http.MethodPost, path, body).status, number)
	}
	a = call(t, c, http.MethodPost, s.path("/tasks/7/result"), task.Result{})
	assert.Equal(t, http.StatusNotFound, a.status)
}

// TestReportedTextIsBounded: a report with a bad code or message still ends its task, and
// what is kept of it is short, on one line and of a code that nodes may report.
func TestReportedTextIsBounded(t *testing.T) {
	var got nodeapi.ReceivedResult
	s := newSite(t, &fakeStore{result: func(r nodeapi.ReceivedResult) (task.Type, error) { got = r; return task.NodeProbe, nil }})
	c := s.client(s.cert())
	for _, code := range []string{"", strings.Repeat("x", 3<<10), "**Next:**", "fenced", "service_unavailable", "unfit\n", "a\x1b[2J"} {
		sent := task.Result{LeaseEpoch: 1, Status: task.Failed, Code: schema.Kind(code),
			Message: "disk\r\n\x1b[2J**Next:** `curl`\u202e" + strings.Repeat("x", 9<<10)}
		a := call(t, c, http.MethodPost, s.path("/tasks/"+schema.NewID()+"/result"), sent)
		require.Equal(t, http.StatusNoContent, a.status, string(a.body))
		require.Equal(t, schema.KindTaskFailed, got.Code, code)
		require.Equal(t, "disk ?[2J**Next:** `curl`?"+strings.Repeat("x", wire.MaxMessage-27)+"…", got.Message)
	}
	sent := task.Result{LeaseEpoch: 1, Status: task.Failed, Code: schema.KindUnfit, Message: "no GPU"}
	require.Equal(t, http.StatusNoContent, call(t, c, http.MethodPost, s.path("/tasks/"+schema.NewID()+"/result"), sent).status)
	require.Equal(t, schema.KindUnfit, got.Code)
	require.Equal(t, "no GPU", got.Message)
}

func TestLeaseLost(t *testing.T) {
	lost := func() error { return schema.NewError(schema.KindLeaseLost, "another lease") }
	s := newSite(t, &fakeStore{
		result:   func(nodeapi.ReceivedResult) (task.Type, error) { return "", lost() },
		progress: func(task.Progress) (wire.ProgressResponse, error) { return wire.ProgressResponse{}, lost() },
	})
	c := s.client(s.cert())
	for _, e := range endpoints() {
		if !strings.HasSuffix(e.path, "/result") && !strings.HasSuffix(e.path, "/progress") {
			continue
		}
		a := call(t, c, e.method, s.path(e.path), e.body)
		assert.Equal(t, http.StatusConflict, a.status)
		assert.Equal(t, schema.KindLeaseLost, a.refusal(t).Code)
	}
}

// A heartbeat is stored before the poll waits for a task.
func TestPollStoresHeartbeat(t *testing.T) {
	sent := wire.Heartbeat{AgentVersion: "v1", UptimeSeconds: 77, BootID: "boot-1", Cordoned: true, Phase: "ready",
		Workloads: []task.Workload{{Name: "a", Kind: "docker"}}, At: time.Now().UTC().Truncate(time.Second)}
	got := make(chan wire.Heartbeat, 1)
	s := newSite(t, &fakeStore{heartbeat: func(c nodeapi.Caller, h wire.Heartbeat) error {
		assert.Equal(t, int64(1), c.Incarnation)
		got <- h
		return nil
	}})
	reporting := func(r *wire.PollRequest) { r.Heartbeat = &sent }
	polled := s.poll(t.Context(), reporting)
	assert.Equal(t, sent, receive(t, got))
	s.parked(1)
	require.NoError(t, s.server.Close())
	receive(t, polled)
}

// A poll with a malformed heartbeat is refused as a whole: it records nothing and
// leases no task. A poll without a heartbeat is accepted, so the agent still receives
// tasks.
func TestMalformedHeartbeatRecordsNothing(t *testing.T) {
	var calls atomic.Int64
	s := newSite(t, &fakeStore{
		next:       func([]string) (*nodeapi.Dispatch, error) { calls.Add(1); return offer(), nil },
		recordPoll: func() error { calls.Add(1); return nil },
		heartbeat:  func(nodeapi.Caller, wire.Heartbeat) error { calls.Add(1); return nil },
	})
	with := func(change func(*wire.Heartbeat)) wire.PollRequest {
		return pollRequest(func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{AgentVersion: "v1", BootID: "b", Phase: wire.PhaseReady, At: time.Now()}
			change(r.Heartbeat)
		})
	}
	work := func(name, kind string) wire.PollRequest {
		return with(func(h *wire.Heartbeat) { h.Workloads = []task.Workload{{Name: name, Kind: kind}} })
	}
	start := `{"nonce":"AAAAAAAAAAAAAAAAAAAAAA","agent_session":"s","heartbeat":`
	for _, c := range []struct {
		reason string
		body   any
	}{
		{"malformed_body", start + `{"agent_version":"v1","mood":"good"}}`},
		{"malformed_body", start + `{"uptime_seconds":"1"}}`},
		{"malformed_body", start + `[]}`},
		{"bad_text", start + `{"boot_id":"a\u0000"}}`},
		{"bad_agent_version", with(func(h *wire.Heartbeat) { h.AgentVersion = strings.Repeat("v", wire.MaxAgentVersion+1) })},
		{"bad_agent_version", with(func(h *wire.Heartbeat) { h.AgentVersion = "v1\x1b[2J" })},
		{"bad_uptime_seconds", with(func(h *wire.Heartbeat) { h.UptimeSeconds = -1 })},
		{"bad_uptime_seconds", with(func(h *wire.Heartbeat) { h.UptimeSeconds = wire.MaxInteger + 1 })},
		{"bad_boot_id", with(func(h *wire.Heartbeat) { h.BootID = strings.Repeat("b", wire.MaxSession+1) })},
		{"bad_driver", with(func(h *wire.Heartbeat) { h.Driver = "docker;" })},
		{"bad_driver", with(func(h *wire.Heartbeat) { h.Driver = "docker,docker" })},
		{"bad_phase", with(func(h *wire.Heartbeat) { h.Phase = "" })},
		{"bad_phase", with(func(h *wire.Heartbeat) { h.Phase = "off" })},
		{"bad_workloads", with(func(h *wire.Heartbeat) { h.Workloads = make([]task.Workload, wire.MaxWorkloads+1) })},
		{"bad_workloads", work("", "docker")},
		{"bad_workloads", work("a\nb", "docker")},
		{"bad_workloads", work(strings.Repeat("w", wire.MaxWorkloadName+1), "docker")},
		{"bad_workloads", work("a", "")},
		{"bad_workloads", work("a", "<b>")},
		{"bad_workloads", with(func(h *wire.Heartbeat) { h.Workloads = []task.Workload{{Name: "a", Kind: "docker", Warning: "a\nb"}} })},
		{"bad_verifier_set", pollRequest(func(r *wire.PollRequest) { r.VerifierSet = wire.MaxInteger + 1 })},
	} {
		a := call(t, s.client(s.cert()), http.MethodPost, s.path("/tasks/wait"), c.body)
		assert.Equal(t, http.StatusBadRequest, a.status)
		assert.Equal(t, c.reason, a.refusal(t).Reason)
		if field, bad := strings.CutPrefix(c.reason, "bad_"); bad && field != "text" {
			assert.Regexp(t, field+"|workload's", a.refusal(t).Message, "the message names the field")
		}
	}
	assert.Zero(t, calls.Load())
	assert.Equal(t, http.StatusOK, receive(t, s.poll(t.Context())).status, "the task is still there")
}

// A heartbeat is not stored for an identity that is refused, nor for one that is
// fenced between its check and the heartbeat; neither poll leases a task.
func TestFencedPollRecordsNoHeartbeat(t *testing.T) {
	fenced := schema.NewError(schema.KindInvalidNodeIdentity, "fenced").WithReason(schema.ReasonIdentityMismatch)
	for name, store := range map[string]*fakeStore{
		"before": {authenticate: func(trust.Identity, trust.CertFacts) (nodeapi.Caller, error) { return nodeapi.Caller{}, fenced },
			heartbeat: func(nodeapi.Caller, wire.Heartbeat) error { t.Error("stored"); return nil }},
		"between": {heartbeat: func(nodeapi.Caller, wire.Heartbeat) error { return fenced }},
	} {
		store.next = func([]string) (*nodeapi.Dispatch, error) { t.Error("leased"); return offer(), nil }
		s := newSite(t, store)
		a := receive(t, s.poll(t.Context(), func(r *wire.PollRequest) { r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady} }))
		assert.Equal(t, http.StatusUnauthorized, a.status, name)
		assert.Equal(t, schema.ReasonIdentityMismatch, a.refusal(t).Reason)
		assert.InDelta(t, 1, s.metric("gpuaas_identity_refusals_total", schema.ReasonIdentityMismatch), 0)
	}
}

// A node that holds the maximum number of tasks waits without an offer.
func TestNoOfferToFullNode(t *testing.T) {
	s := newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) { return offer(), nil }})
	full := make([]string, wire.MaxHeldTasks)
	for i := range full {
		full[i] = schema.NewID()
	}
	assert.Equal(t, http.StatusNoContent, receive(t, s.poll(t.Context(), holding(full...), waitFor(0))).status)
	assert.Equal(t, http.StatusOK, receive(t, s.poll(t.Context(), holding(full[1:]...), waitFor(0))).status)
}
