package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// fakeHealth is a monitor whose report a test replaces.
type fakeHealth struct {
	mu      sync.Mutex
	report  *health.Report
	changed func()
	running chan struct{}
}

func newFakeHealth() *fakeHealth { return &fakeHealth{running: make(chan struct{})} }

func (h *fakeHealth) Run(ctx context.Context, changed func()) {
	h.mu.Lock()
	h.changed = changed
	h.mu.Unlock()
	close(h.running)
	<-ctx.Done()
}

func (h *fakeHealth) Report() *health.Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report
}

// set replaces the report; the agent is notified unless it does not run yet.
func (h *fakeHealth) set(r *health.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.report = r; h.changed != nil {
		h.changed()
	}
}

func reportOf(at time.Time, status health.Status, samples int) *health.Report {
	c := health.Condition{Checker: "gpu_xid", Status: status, Reason: "BusFault", Since: at, Samples: samples}
	if status == health.Unhealthy {
		c.Code, c.Repair = 79, health.RepairReboot
	}
	return &health.Report{At: at, BootID: "b", Conditions: []health.Condition{c}}
}

// lastHealth is the report in the last heartbeat with one, nil if there was none. The caller holds the
// lock of f.
func lastHealth(f *agenttest.API) (r *health.Report) {
	for _, h := range f.Heartbeats {
		if h.Health != nil {
			r = h.Health
		}
	}
	return r
}

// TestHealthInHeartbeats: a report that changed is in the next heartbeat, at once.
func TestHealthInHeartbeats(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	h := newFakeHealth()
	at := time.Now().UTC().Truncate(time.Second)
	h.set(reportOf(at, health.Healthy, 1))
	start(t, configFor(f), Deps{Health: h})
	f.Until("a healthy report", func() bool { r := lastHealth(f); return r != nil && r.Conditions[0].Status == health.Healthy })
	<-h.running
	h.set(reportOf(at, health.Unhealthy, 1))
	f.Until("the fault", func() bool { return lastHealth(f).Conditions[0].Code == 79 })
}

// TestHealthReportsDue: the rules of when a heartbeat has a report.
func TestHealthReportsDue(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := newFakeHealth()
	r := healthReports{monitor: h}
	require.Nil(t, r.due(at, 0), "no sample yet")
	healthy := reportOf(at, health.Healthy, 1)
	h.set(healthy)
	require.Same(t, healthy, r.due(at, 0))
	require.False(t, r.answered(healthy, at, errors.New("connection reset")))
	require.Same(t, healthy, r.due(at, 0), "the server may not have it")
	require.False(t, r.answered(healthy, at, nil))
	h.set(reportOf(at, health.Healthy, 9))
	require.Nil(t, r.due(at.Add(time.Minute), 0), "nothing new")
	require.NotNil(t, r.due(at.Add(wire.HealthInterval-time.Minute), time.Minute), "the poll lasts until the report is due")
	fault := reportOf(at, health.Unhealthy, 1)
	h.set(fault)
	require.Same(t, fault, r.due(at.Add(time.Minute), 0))
	require.False(t, r.answered(fault, at, nil))
	h.set(reportOf(at, health.Unhealthy, 2))
	require.NotNil(t, r.due(at, 0), "a repair waits for samples")

	require.True(t, r.answered(fault, at, schema.NewError(schema.KindInvalidRequest, "unknown field")))
	require.Nil(t, r.due(at.Add(time.Minute), 0), "an older server")
	require.NotNil(t, r.due(at.Add(wire.HealthInterval), 0), "which may be upgraded meanwhile")
	require.False(t, r.answered(nil, at, schema.NewError(schema.KindInvalidRequest, "another field")))
}

// TestServerWithoutHealth: a server of an earlier version refuses the field. It gets heartbeats without
// a report at once, and tasks.
func TestServerWithoutHealth(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	refused := 0
	f.OnWait = func(int) error {
		refuse := false
		f.Note(func() {
			if n := len(f.Heartbeats); n > 0 && f.Heartbeats[n-1].Health != nil && n > refused {
				refuse, refused = true, n
			}
		})
		if refuse {
			return schema.NewError(schema.KindInvalidRequest, "malformed request: json: unknown field \"health\"")
		}
		return nil
	}
	h := newFakeHealth()
	h.set(reportOf(time.Now(), health.Healthy, 1))
	a := start(t, configFor(f), Deps{Health: h, Executors: script{task.FactsCollect: counting(new(atomic.Int32))}.executors()})
	f.Until("a heartbeat without a report", func() bool { n := len(f.Heartbeats); return refused == 1 && n > 1 && f.Heartbeats[n-1].Health == nil })
	f.Offers <- f.OfferOf(f.Payload(task.FactsCollect, 1, nil), 1)
	f.Until("the result of a task", func() bool { return len(f.Results) == 1 })
	require.Contains(t, a.log.String(), "refused a heartbeat with a health report")
}

// TestRebootTask: the machine restarts once the server has the result, and not again when the result is
// reported again after the restart. The task of another boot fails.
func TestRebootTask(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	boot, restarts := "boot-1", make(chan string, 4)
	deps := Deps{BootID: func() string { return boot }, Reboot: func(context.Context) error {
		f.Note(func() { restarts <- f.Results[len(f.Results)-1].Message })
		return nil
	}}
	a := start(t, c, deps)
	p := f.Payload(task.NodeReboot, 1, task.RebootParams{BootID: "boot-1"})
	f.Offers <- f.OfferOf(p, 1)
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.Empty(t, <-restarts)
	f.Until("the boot ID", func() bool { n := len(f.Heartbeats); return n > 0 && f.Heartbeats[n-1].BootID == "boot-1" })
	a.halt()
	f.Deserted()

	boot = "boot-2"
	start(t, c, deps)
	f.Until("the other boot ID", func() bool { return f.Heartbeats[len(f.Heartbeats)-1].BootID == "boot-2" })
	late := f.Payload(task.NodeReboot, 2, task.RebootParams{BootID: "boot-1"})
	f.Offers <- f.OfferOf(late, 1)
	r := f.Result(late.TaskID)
	require.Equal(t, task.Failed, r.Status)
	require.Equal(t, schema.KindTaskFailed, r.Code)
	require.Contains(t, r.Message, "other_boot: ")
	require.Empty(t, restarts)

	bad := f.Payload(task.NodeReboot, 3, struct{}{})
	f.Offers <- f.OfferOf(bad, 1)
	require.Equal(t, schema.KindTaskRefused, f.Result(bad.TaskID).Code)
}
