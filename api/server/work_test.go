package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// task prepares a signed drain task for the node through a store of its own, as a
// worker would. attach makes it available.
func (r *replica) task(m machine) (taskID string, attach func()) {
	r.tb.Helper()
	if r.show(m.id).Operation == nil {
		a := r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", nil)
		require.Equal(r.tb, http.StatusAccepted, a.status, string(a.body))
	}
	f := r.fence(m.id)
	spec := activities.TaskSpec{OperationID: f.OperationID, OpSeq: f.OpSeq, NodeID: m.id,
		Step: schema.NewID(), Type: task.NodeProbe, Deadline: time.Now().Add(time.Hour)}
	owner := task.Owner{WorkflowID: lifecycle.NodeWorkflowID("gpu-17", m.id), RunID: "run", ActivityID: "probe"}
	row, err := r.store.Tasks.Prepare(r.tb.Context(), spec, owner)
	require.NoError(r.tb, err)
	return row.TaskID, func() {
		require.NoError(r.tb, r.store.Tasks.Enqueue(r.tb.Context(), spec, owner, row, []byte(`{"payload":"e30="}`)))
	}
}

// A poll at one replica gets a task that another process attached. Any replica
// accepts the result, once.
func TestTaskAcrossReplicas(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	m := a.enrolled()
	polled := a.poll(m)
	a.parked(1)
	taskID, attach := b.task(m)
	attach()
	got := receive(t, polled)
	require.Equal(t, http.StatusOK, got.status, string(got.body))
	var offer wire.TaskOffer
	got.into(t, &offer)
	assert.Equal(t, taskID, offer.TaskID)
	assert.JSONEq(t, `{"payload":"e30="}`, string(offer.Envelope))

	post := func(r *replica, path string, body any) reply {
		return r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/"+taskID+path), body)
	}
	var progress wire.ProgressResponse
	post(b, "/progress", task.Progress{LeaseEpoch: offer.Lease.Epoch, Message: "half"}).into(t, &progress)
	assert.False(t, progress.Lease.ExpiresAt.Before(offer.Lease.ExpiresAt))
	stale := post(a, "/progress", task.Progress{LeaseEpoch: offer.Lease.Epoch + 1})
	assert.Equal(t, schema.KindLeaseLost, stale.refusal(t).Code)

	now := time.Now().UTC().Truncate(time.Second)
	result := task.Result{LeaseEpoch: offer.Lease.Epoch, Status: task.Succeeded, StartedAt: now, FinishedAt: now,
		Output: json.RawMessage(`{"healthy":true,"checks":[],"boot_id":"b","odd":"\ud800"}`)}
	assert.Equal(t, http.StatusNoContent, post(b, "/result", result).status)
	assert.Equal(t, http.StatusNoContent, post(a, "/result", result).status, "the same result again")
	result.LeaseEpoch++
	late := post(a, "/result", result)
	assert.Equal(t, http.StatusConflict, late.status)
	assert.Equal(t, schema.KindLeaseLost, late.refusal(t).Code)
	assert.InDelta(t, 1, a.metric("gpuaas_tasks_total")+b.metric("gpuaas_tasks_total"), 0)

	other := b.enrolled()
	foreign := b.call(b.client(other.cert), http.MethodPost, b.url(other, "/tasks/"+taskID+"/result"), result)
	assert.Equal(t, http.StatusNotFound, foreign.status, "a task of another node")
	unknown := b.call(b.client(m.cert), http.MethodPost, b.url(m, "/tasks/"+schema.NewID()+"/result"), result)
	assert.Equal(t, schema.KindNotFound, unknown.refusal(t).Code)
	assert.Equal(t, http.StatusNoContent, a.wait(m, 0).status, "nothing is offered twice")
}

// An open poll ends at once when a task of the node is canceled at another replica,
// or voided with its operation.
func TestCancelEndsOpenPoll(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	m := a.enrolled()
	for name, end := range map[string]func(taskID string){
		"cancelled": func(taskID string) {
			got := b.ask(http.MethodPost, "/tasks/"+taskID+"/cancel", wire.TaskDecision{Reason: "wrong node"})
			require.Equal(t, http.StatusOK, got.status, string(got.body))
		},
		"voided": func(string) { require.NoError(t, b.store.Tasks.Void(t.Context(), b.fence(m.id))) },
	} {
		taskID, attach := b.task(m)
		attach()
		var offer wire.TaskOffer
		a.wait(m, 5*time.Second).into(t, &offer)
		require.Equal(t, taskID, offer.TaskID, name)
		polled := a.poll(m, taskID)
		a.parked(1)
		end(taskID)
		got := receive(t, polled)
		assert.Equal(t, http.StatusNoContent, got.status, name)
		assert.Equal(t, taskID, got.header.Get(wire.HeaderCanceledTasks), name)
		assert.Equal(t, http.StatusNoContent, a.wait(m, 0).status, "nothing is offered again")
	}
}

// Wakes are lost while the connection for notifications is down. All polls query
// again once it is back.
func TestReconnectWakesPolls(t *testing.T) {
	c := newCluster(t)
	r := c.replica()
	m := r.enrolled()
	polled := r.poll(m)
	r.parked(1)
	_, attach := r.task(m)
	conn, err := pgx.Connect(t.Context(), c.url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	harness.Eventually(t, "the connection for notifications", func() bool {
		var cut int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = 'gpuaas-listener' AND datname = current_database()`).Scan(&cut))
		return cut == 1
	})
	attach()
	assert.Equal(t, http.StatusOK, receive(t, polled).status)
}

func TestCertificateIsRequired(t *testing.T) {
	r := newCluster(t).replica()
	m := r.enrolled()
	m.cert = nil
	for _, e := range agentCalls() {
		a := r.call(r.client(nil), e.method, r.url(m, e.path), e.body)
		assert.Equal(t, http.StatusUnauthorized, a.status, e.path)
		assert.Equal(t, schema.ReasonNoCertificate, a.refusal(t).Reason)
	}
}

type agentCall struct {
	method, path string
	body         any
}

func agentCalls() []agentCall {
	nodeTask := "/tasks/" + schema.NewID()
	return []agentCall{
		{http.MethodPost, "/tasks/wait", pollRequest(wire.MaxPollTimeout)},
		{http.MethodGet, "/verifier-sets", nil},
		{http.MethodGet, "/trust", nil},
		{http.MethodPost, nodeTask + "/result", task.Result{Status: task.Failed}},
		{http.MethodPost, nodeTask + "/progress", task.Progress{}},
		{http.MethodPost, "/certificates/renew", wire.RenewRequest{}},
	}
}

// A removed node is refused by every route of every replica, and its open polls end
// within seconds.
func TestRemovedNode(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	m := a.enrolled()
	polls := []<-chan reply{a.poll(m), b.poll(m)}
	a.parked(1)
	b.parked(1)
	start := time.Now()
	b.remove(m.id)
	for _, p := range polls {
		got := receive(t, p)
		assert.Equal(t, http.StatusUnauthorized, got.status)
		assert.Equal(t, schema.ReasonNodeRemoved, got.refusal(t).Reason)
	}
	t.Logf("both open polls ended %s after the removal began", time.Since(start).Round(time.Millisecond))
	for _, r := range []*replica{a, b} {
		for _, e := range agentCalls() {
			got := r.call(r.client(m.cert), e.method, r.url(m, e.path), e.body)
			assert.Equal(t, http.StatusUnauthorized, got.status, e.path)
			assert.Equal(t, schema.ReasonNodeRemoved, got.refusal(t).Reason, e.path)
		}
		got := r.enroll(m.id, wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, newKey(t), nil)})
		assert.Equal(t, http.StatusUnauthorized, got.status)
		assert.Equal(t, schema.ReasonNodeRemoved, got.refusal(t).Reason, "enroll")
	}
	got := a.ask(http.MethodPost, "/nodes/"+m.id+"/enroll", nil)
	assert.Equal(t, schema.KindInvalidRequest, got.refusal(t).Code)
}

// Without notifications, an open poll of a fenced node ends in the same time at
// every replica, and polls of other nodes stay open.
func TestFencedWithoutNotifications(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	for reason, fence := range map[string]func(m machine){
		schema.ReasonNodeRemoved: func(m machine) { b.remove(m.id) },
		schema.ReasonNodeLocked: func(m machine) {
			c.exec("UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'test' WHERE node_id = '" + m.id + "'")
		},
		schema.ReasonIdentityMismatch: func(m machine) {
			c.exec("UPDATE nodes SET incarnation = incarnation + 1 WHERE node_id = '" + m.id + "'")
		},
	} {
		m, other := a.enrolled(), a.enrolled()
		polls := []<-chan reply{a.poll(m), b.poll(m)}
		open := []<-chan reply{a.poll(other), b.poll(other)}
		a.parked(2)
		b.parked(2)
		a.deafen()
		b.deafen()
		fence(m)
		for _, p := range polls {
			require.Equal(t, reason, receive(t, p).refusal(t).Reason)
		}
		for _, p := range open {
			select {
			case got := <-p:
				require.Fail(t, "the poll of another node ended", "%s: %d", reason, got.status)
			default:
			}
		}
		b.remove(other.id) // ends its polls for the next case
		for _, p := range open {
			receive(t, p)
		}
	}
}

// fakeTemporal receives messages, or is unavailable.
type fakeTemporal struct {
	mu      sync.Mutex
	err     error
	results []task.Reference
	events  []lifecycle.AgentEvent
}

func (f *fakeTemporal) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeTemporal) CompleteTask(_ context.Context, _ task.Owner, r task.Reference) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.results = append(f.results, r)
	}
	return f.err
}

func (f *fakeTemporal) SignalAgent(_ context.Context, _ string, e lifecycle.AgentEvent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.events = append(f.events, e)
	}
	return f.err
}

func (f *fakeTemporal) got() (results, events int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.results), len(f.events)
}

// A result is accepted while Temporal is unavailable, and delivered afterwards.
func TestResultDuringTemporalOutage(t *testing.T) {
	r := newCluster(t).replica()
	m := r.enrolled()
	temporal := &fakeTemporal{err: schema.NewError(schema.KindServiceUnavailable, "Temporal does not answer")}
	ctx, stop := context.WithCancel(t.Context())
	registry := prometheus.NewRegistry()
	carrier := &relay.Relay{Outbox: r.store.Tasks.Outbox(r.listener), Temporal: temporal, Metrics: metrics.New(registry),
		Log: slog.New(slog.DiscardHandler)}
	var group sync.WaitGroup
	group.Go(func() { carrier.Run(ctx) })
	defer func() { stop(); group.Wait() }()

	taskID, attach := r.task(m)
	attach()
	var offer wire.TaskOffer
	r.wait(m, 5*time.Second).into(t, &offer)
	a := r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/"+taskID+"/result"),
		task.Result{LeaseEpoch: offer.Lease.Epoch, Status: task.Succeeded, Output: json.RawMessage(`{"healthy":true}`)})
	require.Equal(t, http.StatusNoContent, a.status, string(a.body))
	temporal.set(nil)
	harness.Eventually(t, "the delivery", func() bool {
		results, events := temporal.got()
		return results == 1 && events == 3
	})
}

// The fleet gauges are read from the database, by the leader only.
func TestFleetCollector(t *testing.T) {
	r := newCluster(t).replica()
	m := r.enrolled()
	r.register()
	_, attach := r.task(m)
	attach()
	families, err := r.registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			key := f.GetName()
			for _, l := range x.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = x.GetGauge().GetValue()
		}
	}
	assert.InDelta(t, 1, got["gpuaas_nodes region-1 cpu-dev registered"], 0)
	assert.InDelta(t, 1, got["gpuaas_nodes region-1 cpu-dev draining"], 0)
	assert.Contains(t, got, "gpuaas_nodes   active", "states without nodes read 0")
	assert.Zero(t, got["gpuaas_nodes   active"])
	assert.InDelta(t, 1, got["gpuaas_certificate_life_left_ratio"], 0.1)
	assert.InDelta(t, 1, got["gpuaas_task_leases pending"], 0)
	assert.Contains(t, got, "gpuaas_task_leases lost", "statuses without tasks read 0")
	assert.Contains(t, got, "gpuaas_state_age_seconds registered")

	follower := prometheus.NewRegistry()
	follower.MustRegister(metrics.NewFleetCollector(r.store.Inventory, func() bool { return false }, slog.New(slog.DiscardHandler)))
	families, err = follower.Gather()
	require.NoError(t, err)
	assert.Empty(t, families)
}
