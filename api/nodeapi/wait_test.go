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
)

const soon = 5 * time.Second

// poll makes a wait request in the background, with more of a query.
func (s *site) poll(ctx context.Context, more string) <-chan answer {
	c, out := s.client(s.cert()), make(chan answer, 1)
	go func() {
		a, err := try(ctx, c, http.MethodGet, s.path("/tasks/wait?"+asker()+more), nil)
		if err != nil {
			a.body = []byte(err.Error())
		}
		out <- a
	}()
	return out
}

// parked waits until n polls of the node wait.
func (s *site) parked(n int) {
	s.tb.Helper()
	require.Eventually(s.tb, func() bool {
		return s.wakes.waiting(s.node.NodeID) == n && s.metric("gpuaas_waiting_agents") == float64(n)
	}, soon, time.Millisecond)
}

func receive[T any](tb testing.TB, ch <-chan T) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(soon):
		require.FailNow(tb, "nothing came")
		panic("unreachable")
	}
}

func offer() *wire.TaskOffer {
	now := time.Now().UTC().Truncate(time.Second)
	return &wire.TaskOffer{TaskID: schema.NewID(), Envelope: json.RawMessage(`{"payload":"e30="}`),
		Lease: task.Lease{Epoch: 1, ExpiresAt: now.Add(task.LeaseDuration)}, ServerTime: now,
		Type: task.NodeProbe, CreatedAt: now.Add(-time.Second)}
}

func TestWaitAnswersAtOnceWhenThereIsWork(t *testing.T) {
	o := offer()
	s := newSite(t, &fakeStore{next: func([]string) (*wire.TaskOffer, error) { return o, nil }})
	a := receive(t, s.poll(t.Context(), ""))
	require.Equal(t, http.StatusOK, a.status)
	want := *o
	want.Grant, want.GrantKey = json.RawMessage(`{"signed":1}`), json.RawMessage(`{"delegation":1}`)
	text, err := json.Marshal(want)
	require.NoError(t, err)
	assert.JSONEq(t, string(text), string(a.body))
	assert.NotContains(t, string(a.body), "probe", "type and creation stay here")
	assert.InDelta(t, 1, s.metric("gpuaas_task_dispatch_seconds"), 0)
	assert.InDelta(t, 1, s.metric("gpuaas_certificate_expiry_seconds"), 0)
	s.parked(0)
}

func TestWaitEndsWithoutWork(t *testing.T) {
	s := newSite(t, &fakeStore{})
	for _, timeout := range []string{"0s", "1ms", "30ms"} {
		a := receive(t, s.poll(t.Context(), "&timeout="+timeout))
		assert.Equal(t, http.StatusNoContent, a.status)
		assert.Empty(t, a.body)
	}
}

func TestWakeBringsWork(t *testing.T) {
	var ready atomic.Bool
	s := newSite(t, &fakeStore{next: func([]string) (*wire.TaskOffer, error) {
		if ready.Load() {
			return offer(), nil
		}
		return nil, nil
	}})
	polled := s.poll(t.Context(), "")
	s.parked(1)
	s.wakes.wake(s.node.NodeID) // for nothing: it goes on waiting
	s.wakes.wake(schema.NewID())
	select {
	case a := <-polled:
		require.Failf(t, "the poll ended", "%d %s", a.status, a.body)
	case <-time.After(50 * time.Millisecond):
	}
	ready.Store(true)
	s.wakes.wake(s.node.NodeID)
	assert.Equal(t, http.StatusOK, receive(t, polled).status)
	s.parked(0)
}

func (f *fakeStore) CanceledTasks(_ context.Context, _ nodeapi.Caller, have []string) ([]string, error) {
	if f.news != nil {
		return f.news(have)
	}
	return nil, nil
}

// A poll is answered at once when a wake came because a task in its have is not
// wanted any more. What is so when the poll begins, or is found without a wake,
// ends no poll: it would end each.
func TestNewsEndsAWokenPoll(t *testing.T) {
	one, two := schema.NewID(), schema.NewID()
	var looks atomic.Int32
	var news atomic.Pointer[[]string]
	s := newSiteWith(t, &fakeStore{news: func(have []string) ([]string, error) {
		assert.Equal(t, []string{one, two}, have)
		looks.Add(1)
		return *news.Load(), nil
	}}, func(c *nodeapi.Config) { c.Recheck = time.Millisecond })
	news.Store(&[]string{})
	with := "&have=" + one + "," + two
	polled := s.poll(t.Context(), with)
	s.parked(1)
	s.wakes.wake(s.node.NodeID)
	require.Eventually(t, func() bool { return looks.Load() == 1 }, soon, time.Millisecond)
	news.Store(&[]string{two, one})
	s.wakes.wake(s.node.NodeID)
	a := receive(t, polled)
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Equal(t, two+","+one, a.header.Get(wire.HeaderCanceledTasks))
	assert.NotEmpty(t, a.header.Get(wire.HeaderVerifierSet))

	a = receive(t, s.poll(t.Context(), with+"&timeout=50ms"))
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Empty(t, a.header.Get(wire.HeaderCanceledTasks))
	assert.Equal(t, int32(2), looks.Load(), "nobody looks without a wake")

	polled = s.poll(t.Context(), "&timeout=1s")
	s.parked(1)
	s.wakes.wake(s.node.NodeID)
	receive(t, polled)
	assert.Equal(t, int32(2), looks.Load(), "a node without tasks has no news")
}

// A task that comes between the look at the queue and the wait is not missed,
// since the subscription is older than both.
func TestNoLostWake(t *testing.T) {
	var s *site
	looks := 0
	s = newSite(t, &fakeStore{next: func([]string) (*wire.TaskOffer, error) {
		if looks++; looks == 1 {
			s.wakes.wake(s.node.NodeID) // attached right after we looked
			return nil, nil
		}
		return offer(), nil
	}})
	assert.Equal(t, http.StatusOK, receive(t, s.poll(t.Context(), "")).status)
}

// A node that is fenced while its row is read is not missed either.
func TestNoLostFence(t *testing.T) {
	var s *site
	reads := 0
	s = newSite(t, &fakeStore{authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
		if reads++; reads == 1 {
			s.wakes.wake(s.node.NodeID)
			return nodeapi.Caller{NodeID: id.NodeID}, nil
		}
		return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "gone").WithReason(schema.ReasonNodeRemoved)
	}})
	a := receive(t, s.poll(t.Context(), ""))
	assert.Equal(t, schema.ReasonNodeRemoved, a.refusal(t).Reason)
}

func TestRemovedNodeLosesItsPoll(t *testing.T) {
	var removed atomic.Bool
	s := newSite(t, &fakeStore{authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
		if removed.Load() {
			return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "gone").WithReason(schema.ReasonNodeRemoved)
		}
		return nodeapi.Caller{NodeID: id.NodeID}, nil
	}})
	polled := s.poll(t.Context(), "")
	s.parked(1)
	removed.Store(true)
	s.wakes.wake(s.node.NodeID)
	a := receive(t, polled)
	assert.Equal(t, http.StatusUnauthorized, a.status)
	assert.Equal(t, schema.ReasonNodeRemoved, a.refusal(t).Reason)
	s.parked(0)
}

func TestShutdownEndsPolls(t *testing.T) {
	s := newSite(t, &fakeStore{})
	first, second := s.poll(t.Context(), ""), s.poll(t.Context(), "")
	s.parked(2)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.NoError(t, s.server.Shutdown(ctx))
	assert.Equal(t, http.StatusNoContent, receive(t, first).status)
	assert.Equal(t, http.StatusNoContent, receive(t, second).status)
}

func TestCallerThatLeavesIsForgotten(t *testing.T) {
	s := newSite(t, &fakeStore{})
	ctx, cancel := context.WithCancel(t.Context())
	polled := s.poll(ctx, "")
	s.parked(1)
	cancel()
	receive(t, polled)
	s.parked(0)
	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), `"status":499`) }, soon, time.Millisecond)
}

func TestWaitParameters(t *testing.T) {
	var have []string
	s := newSite(t, &fakeStore{next: func(h []string) (*wire.TaskOffer, error) { have = h; return nil, nil }})
	c := s.client(s.cert())
	one, two := schema.NewID(), schema.NewID()
	a := call(t, c, http.MethodGet, s.path("/tasks/wait?timeout=0s&have="+one+","+two+"&"+asker()), nil)
	assert.Equal(t, http.StatusNoContent, a.status)
	assert.Equal(t, []string{one, two}, have)
	good := "&nonce=AAAAAAAAAAAAAAAAAAAAAA&holder=boot-1700000000"
	for query, reason := range map[string]string{
		"timeout=":                     "bad_timeout",
		"timeout=5":                    "bad_timeout",
		"timeout=-1s":                  "bad_timeout",
		"timeout=soon":                 "bad_timeout",
		"timeout=1s&timeout=2s":        "bad_query",
		"have=x":                       "bad_have",
		"have=" + one + ",":            "bad_have",
		"have=" + one + "&have=" + two: "bad_query",
		"have=" + strings.Repeat(one+",", 64) + one: "bad_have",
		"set=":                         "bad_set",
		"set=-1":                       "bad_set",
		"set=01":                       "bad_set",
		"set=1e3":                      "bad_set",
		"set=9999999999999999999":      "bad_set",
		"set=1&set=1":                  "bad_query",
		"number=":                      "bad_number",
		"number=-1":                    "bad_number",
		"number=1&number=2":            "bad_query",
		"holder=x":                     "bad_query", // a second one
		"nonce=AAAAAAAAAAAAAAAAAAAAAA": "bad_query",
	} {
		a := call(t, c, http.MethodGet, s.path("/tasks/wait?"+query+good), nil)
		assert.Equal(t, http.StatusBadRequest, a.status, query)
		assert.Equal(t, reason, a.refusal(t).Reason, query)
	}
	for query, reason := range map[string]string{
		"holder=b":                                                        "bad_nonce",
		"holder=b&nonce=":                                                 "bad_nonce",
		"holder=b&nonce=AAAAAAAAAAAAAAAAAAAAA":                            "bad_nonce",
		"holder=b&nonce=AAAAAAAAAAAAAAAAAAAAAAA":                          "bad_nonce",
		"holder=b&nonce=AAAAAAAAAAAAAAAAAAAAAB":                           "bad_nonce", // the same bytes, another spelling
		"holder=b&nonce=AAAAAAAAAAAAAAAAAAAAA%2B":                         "bad_nonce",
		"nonce=AAAAAAAAAAAAAAAAAAAAAA":                                    "bad_holder",
		"nonce=AAAAAAAAAAAAAAAAAAAAAA&holder=":                            "bad_holder",
		"nonce=AAAAAAAAAAAAAAAAAAAAAA&holder=a%00":                        "bad_holder",
		"nonce=AAAAAAAAAAAAAAAAAAAAAA&holder=ä":                           "bad_holder",
		"nonce=AAAAAAAAAAAAAAAAAAAAAA&holder=" + strings.Repeat("h", 129): "bad_holder",
	} {
		a := call(t, c, http.MethodGet, s.path("/tasks/wait?"+query), nil)
		assert.Equal(t, http.StatusBadRequest, a.status, query)
		assert.Equal(t, reason, a.refusal(t).Reason, query)
	}
}

// A database that fails while a poll is open ends it, so that the agent backs
// off.
func TestStoreFailureEndsThePoll(t *testing.T) {
	var down atomic.Bool
	s := newSite(t, &fakeStore{next: func([]string) (*wire.TaskOffer, error) {
		if down.Load() {
			return nil, schema.NewError(schema.KindServiceUnavailable, "Postgres does not answer")
		}
		return nil, nil
	}})
	polled := s.poll(t.Context(), "")
	s.parked(1)
	down.Store(true)
	s.wakes.wake(s.node.NodeID)
	assert.Equal(t, http.StatusServiceUnavailable, receive(t, polled).status)
}

func TestResult(t *testing.T) {
	var got task.Result
	stored := task.NodeProbe
	s := newSite(t, &fakeStore{result: func(r task.Result) (task.Type, error) { got = r; return stored, nil }})
	c := s.client(s.cert())
	path := s.path("/tasks/" + schema.NewID() + "/result")
	a := call(t, c, http.MethodPost, path,
		`{"lease_epoch":2,"status":"succeeded","output":{"n":12345678901234567890,"s":"\ud800"},"started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}`)
	assert.Equal(t, http.StatusNoContent, a.status, string(a.body))
	assert.Equal(t, int64(2), got.LeaseEpoch)
	assert.JSONEq(t, `{"n":12345678901234567890,"s":"`+"\ufffd"+`"}`, string(got.Output), "numbers stay, broken text is mended")
	stored = "" // the same result again
	call(t, c, http.MethodPost, path, task.Result{LeaseEpoch: 2, Status: task.Succeeded})
	assert.InDelta(t, 1, s.metric("gpuaas_tasks_total", "succeeded", "node.probe"), 0)

	big := `{"lease_epoch":1,"status":"succeeded","output":"` + strings.Repeat("x", 900<<10) + `","started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}`
	assert.Equal(t, http.StatusNoContent, call(t, c, http.MethodPost, path, big).status)
	full := task.Result{LeaseEpoch: 1, Status: task.Failed, EnvelopeSHA256: strings.Repeat("0a", 32),
		OutputTail: strings.Repeat("ä", task.MaxOutputTail/2)}
	assert.Equal(t, http.StatusNoContent, call(t, c, http.MethodPost, path, full).status)
	assert.Equal(t, full.OutputTail, got.OutputTail)
	assert.Equal(t, full.EnvelopeSHA256, got.EnvelopeSHA256)
	for name, body := range map[string]string{
		"too_large":           `{"message":"` + strings.Repeat("x", wire.MaxResultBytes) + `"}`,
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
	a = call(t, c, http.MethodPost, s.path("/tasks/7/result"), task.Result{})
	assert.Equal(t, http.StatusNotFound, a.status)
}

func TestLostLease(t *testing.T) {
	lost := func() error { return schema.NewError(schema.KindLeaseLost, "another lease") }
	s := newSite(t, &fakeStore{
		result:   func(task.Result) (task.Type, error) { return "", lost() },
		progress: func(task.Progress) (wire.ProgressResponse, error) { return wire.ProgressResponse{}, lost() },
	})
	c := s.client(s.cert())
	for _, e := range endpoints()[1:3] {
		a := call(t, c, e.method, s.path(e.path), e.body)
		assert.Equal(t, http.StatusConflict, a.status)
		assert.Equal(t, schema.KindLeaseLost, a.refusal(t).Code)
	}
}

func TestHeartbeatBodies(t *testing.T) {
	s := newSite(t, &fakeStore{})
	c := s.client(s.cert())
	for reason, body := range map[string]string{
		"malformed_body": `{"agent_version":"v1","mood":"good"}`,
		"too_large":      `{"agent_version":"` + strings.Repeat("v", wire.MaxBodyBytes) + `"}`,
	} {
		a := call(t, c, http.MethodPost, s.path("/heartbeat"), body)
		assert.Equal(t, http.StatusBadRequest, a.status)
		assert.Equal(t, reason, a.refusal(t).Reason)
	}
	assert.Equal(t, http.StatusOK, call(t, s.client(nil), http.MethodGet, s.base+"/api/v1/healthz", nil).status)
}
