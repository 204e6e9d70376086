package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func healthy(checker, component string) health.Condition {
	return health.Condition{Checker: checker, Component: component, Status: health.Healthy, Reason: "OK"}
}

func unhealthy(checker, component, reason string) health.Condition {
	return health.Condition{Checker: checker, Component: component, Status: health.Unhealthy, Reason: reason, Code: 79, Repair: health.RepairReboot, Detail: "fell off the bus"}
}

// report is a report of conditions that began when it was made, unless they say otherwise.
func report(at time.Time, conditions ...health.Condition) *health.Report {
	for i := range conditions {
		if conditions[i].Since.IsZero() {
			conditions[i].Since = at
		}
	}
	return &health.Report{At: at, BootID: "boot-1", Conditions: conditions}
}

// conditions returns the conditions of a node as checker, component, status and reason.
func (e *env) conditions(nodeID string) (lines []string) {
	e.t.Helper()
	for _, c := range e.node(nodeID).Conditions {
		lines = append(lines, fmt.Sprintf("%s %s %s %s", c.Checker, c.Component, c.Status, c.Reason))
	}
	return lines
}

// Each change of the status, the reason or the code of a condition is one signal. A report may be
// repeated.
func TestConditionsAndTheirSignals(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	at := time.Now().Add(-time.Hour)
	for _, step := range []struct {
		conditions, signals []string
		report              []health.Condition
	}{
		{[]string{"gpu GPU-1 unhealthy Fallen", "disk  healthy OK", "gpu GPU-0 healthy OK"}, []string{"health.gpu unhealthy Fallen GPU-1"},
			[]health.Condition{healthy("gpu", "GPU-0"), unhealthy("gpu", "GPU-1", "Fallen"), healthy("disk", "")}},
		{[]string{"gpu GPU-1 unhealthy Xid", "disk  healthy OK", "gpu GPU-0 healthy OK"}, []string{"health.gpu unhealthy Xid GPU-1"},
			[]health.Condition{healthy("gpu", "GPU-0"), unhealthy("gpu", "GPU-1", "Xid"), healthy("disk", "")}},
		{[]string{"gpu GPU-0 unknown Timeout", "gpu GPU-1 healthy OK"}, []string{"health.gpu healthy OK GPU-1", "health.gpu unknown Timeout GPU-0"},
			[]health.Condition{{Checker: "gpu", Component: "GPU-0", Status: health.Unknown, Reason: "Timeout"}, healthy("gpu", "GPU-1")}},
		{[]string{"gpu GPU-0 unhealthy Xid"}, []string{"health.gpu unhealthy Xid GPU-0"}, []health.Condition{unhealthy("gpu", "GPU-0", "Xid")}},
		{nil, []string{"health.gpu unknown ended GPU-0"}, nil},
	} {
		at = at.Add(time.Minute)
		h := wire.Heartbeat{BootID: "boot-1", Health: report(at, step.report...)}
		require.ElementsMatch(t, step.signals, e.newSignals(c.NodeID, func() {
			for _, err := range race(4, func(int) error { return e.Heartbeat(ctx, c, h) }) {
				require.NoError(t, err)
			}
		}))
		require.Equal(t, step.conditions, e.conditions(c.NodeID))
	}
	require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{BootID: "boot-1", Health: report(at, unhealthy("gpu", "GPU-0", "Xid"))}))
	require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{BootID: "boot-1"}))
	require.Len(t, e.conditions(c.NodeID), 1, "a heartbeat without a report ends no condition")
	rows, _, err := e.ListSignals(ctx, adminapi.SignalQuery{Page: all, NodeID: c.NodeID, Statuses: []health.Status{health.Unhealthy}})
	require.NoError(t, err)
	require.Equal(t, health.Signal{SignalID: rows[0].SignalID, Type: "health.gpu", Source: health.SourceAgent, NodeID: c.NodeID, Host: c.Host, InstanceID: rows[0].InstanceID,
		At: rows[0].At, Status: health.Unhealthy, Component: "GPU-0", Reason: "Xid", Code: 79, Repair: health.RepairReboot, BootID: "boot-1", Detail: "fell off the bus"}, rows[0])
}

// The time of a condition is by the database's clock, whatever the node's clock is. It stays while
// the status stays, and restarts if the reporter has seen another status in the meantime.
func TestConditionsSince(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	clock := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // the node's
	send := func(r *health.Report) signal.Condition {
		t.Helper()
		require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{Health: r}))
		return e.node(c.NodeID).Conditions[0]
	}
	fault := unhealthy("gpu", "", "Fallen")
	fault.Since, fault.Samples = clock.Add(-3*time.Minute), 3
	first := send(report(clock, fault))
	require.WithinDuration(t, time.Now().Add(-3*time.Minute), first.Since, time.Minute)
	fault.Reason, fault.Samples = "Xid", 4
	second := send(report(clock.Add(time.Hour), fault))
	require.Equal(t, first.Since, second.Since)
	require.Equal(t, 4, second.Samples)
	fault.Since = clock.Add(61 * time.Minute)
	third := send(report(clock.Add(62*time.Minute), fault))
	require.WithinDuration(t, time.Now().Add(-time.Minute), third.Since, time.Minute)
	fault.Since = time.Unix(0, 0)
	fault.Status, fault.Repair = health.Unknown, ""
	fault.FaultSince, fault.FaultSamples, fault.UnknownSeconds = clock, 7, 60
	fourth := send(report(clock.Add(63*time.Minute), fault))
	require.WithinDuration(t, time.Now().Add(-wire.HealthInterval), fourth.Since, time.Minute, "the age is bounded")
	require.WithinDuration(t, time.Now().Add(-wire.HealthInterval), fourth.FaultSince, time.Minute)
	require.Equal(t, 7, fourth.FaultSamples)
	require.Equal(t, int64(60), fourth.UnknownSeconds)
}

// TestClockSetBackDuringFault: a fault keeps its age although the node's clock was set back to before its beginning,
// whatever the number of reports since.
func TestClockSetBackDuringFault(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	clock := time.Now()
	fault := unhealthy("gpu", "", "Fallen")
	fault.Since = clock.Add(-2 * time.Minute)
	var began time.Time
	for i, at := range []time.Duration{0, -time.Hour, -59 * time.Minute, -58 * time.Minute} {
		fault.Samples++
		require.NoError(t, e.Heartbeat(t.Context(), c, wire.Heartbeat{Health: report(clock.Add(at), fault)}))
		got := e.node(c.NodeID).Conditions[0]
		if i == 0 {
			began = got.Since
		}
		require.Equal(t, fault.Samples, got.Samples)
		require.Equal(t, began, got.Since, "report %d", i)
	}
}

// TestNewFaultHasNoAge: a fault that the report before did not have began since then, whatever the reporter says, and
// one of a first report within the interval of reports. One that was unknown for a while continues.
func TestNewFaultHasNoAge(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	clock := time.Now()
	send := func(checker string, status health.Status, since time.Time) (got signal.Condition) {
		t.Helper()
		fault := unhealthy(checker, "", "Fallen")
		fault.Status, fault.Since, fault.Samples = status, since, 30_000
		if status == health.Unknown {
			fault.Repair, fault.FaultSince = "", since
		}
		clock = clock.Add(time.Second)
		require.NoError(t, e.Heartbeat(t.Context(), c, wire.Heartbeat{Health: report(clock, fault)}))
		return e.node(c.NodeID).Conditions[0]
	}
	month := clock.Add(-30 * day)
	ago := func(d time.Duration, got time.Time) {
		t.Helper()
		require.WithinDuration(t, time.Now().Add(-d), got, time.Minute)
	}
	ago(wire.HealthInterval, send("first", health.Unhealthy, month).Since)
	ago(wire.HealthInterval, send("second", health.Unhealthy, month).Since)

	e.exec("UPDATE health_reports SET reported_at = now() - interval '2 hours'")
	ago(90*time.Minute, send("third", health.Unhealthy, clock.Add(-90*time.Minute)).Since)
	e.exec("UPDATE health_reports SET reported_at = now() - interval '2 hours'")
	ago(2*time.Hour, send("fourth", health.Unhealthy, month).Since)

	ago(2*time.Hour, send("fourth", health.Unknown, clock.Add(-2*time.Hour)).FaultSince)
	ago(2*time.Hour, send("fourth", health.Unhealthy, clock.Add(-2*time.Hour)).Since)
	ago(2*time.Hour, send("fourth", health.Unknown, month).FaultSince)
	ago(2*time.Hour, send("fourth", health.Unhealthy, month).Since)
}

// A report that another one overtook changes nothing. A much older one means that the reporter's
// clock was set back.
func TestOvertakenReport(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	at := time.Now()
	send := func(r *health.Report) bool {
		t.Helper()
		accepted, err := e.ReportHealth(ctx, e.node(n.ID), *r)
		require.NoError(t, err)
		return accepted
	}
	require.True(t, send(report(at, healthy("node_ready", ""))))
	require.False(t, send(report(at.Add(-time.Second), unhealthy("node_ready", "", "NotReady"))))
	require.Equal(t, []string{"node_ready  healthy OK"}, e.conditions(n.ID))
	require.True(t, send(report(at.Add(-time.Hour), unhealthy("node_ready", "", "NotReady"))))
	require.Equal(t, []string{"node_ready  unhealthy NotReady"}, e.conditions(n.ID))
	require.Equal(t, health.SourceCluster, e.node(n.ID).Conditions[0].Source)
}

// The reports of two reporters do not touch each other's conditions, and those of two replicas are
// stored once.
func TestReportersAreSeparate(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	other := e.secondReplica()
	at := time.Now()
	signals := e.newSignals(c.NodeID, func() {
		for _, err := range race(8, func(i int) error {
			if i%2 == 0 {
				return other.Inventory.Heartbeat(ctx, c, wire.Heartbeat{Health: report(at, unhealthy("disk", "", "Full"))})
			}
			_, err := e.ReportHealth(ctx, wire.NodeView{ID: c.NodeID, Incarnation: c.Incarnation}, *report(at, unhealthy("node_ready", "", "NotReady")))
			return err
		}) {
			require.NoError(t, err)
		}
	})
	require.ElementsMatch(t, []string{"health.disk unhealthy Full", "health.node_ready unhealthy NotReady"}, signals)
	require.Equal(t, []string{"disk  unhealthy Full", "node_ready  unhealthy NotReady"}, e.conditions(c.NodeID))
}

// A condition without a report for 15 minutes, or of an earlier incarnation, reads as unknown.
func TestStaleConditions(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	require.NoError(t, e.Heartbeat(ctx, m.caller, wire.Heartbeat{Health: report(time.Now(), unhealthy("gpu", "", "Fallen"))}))
	gauge := func() int {
		counts, err := e.ConditionCounts(ctx)
		require.NoError(t, err)
		return len(counts)
	}
	require.Equal(t, 1, gauge())
	e.exec("UPDATE health_reports SET reported_at = now() - interval '16 minutes'")
	require.Zero(t, gauge())
	got := e.node(m.caller.NodeID).Conditions[0]
	require.True(t, got.Stale)
	require.Equal(t, health.Unknown, got.Status)
	require.Equal(t, "Fallen", got.Reason)
	require.NoError(t, e.Heartbeat(ctx, m.caller, wire.Heartbeat{Health: report(time.Now(), unhealthy("gpu", "", "Fallen"))}))
	require.Equal(t, health.Unhealthy, e.node(m.caller.NodeID).Conditions[0].Status)

	old := m.caller
	e.reissue(m, m.k(2))
	require.True(t, e.node(m.caller.NodeID).Conditions[0].Stale)
	require.Zero(t, gauge())
	before := e.signalsOf(m.caller.NodeID)
	requireKind(t, e.Heartbeat(ctx, old, wire.Heartbeat{Health: report(time.Now())}), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	require.Equal(t, before, e.signalsOf(m.caller.NodeID))
	require.Len(t, e.node(m.caller.NodeID).Conditions, 1)
}

// A hostile node fills no table: its signals of an hour are bounded, one signal counts the others,
// and its present conditions stay right.
func TestHostileNodeIsBounded(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	at := time.Now()
	const reports = 79 // 10,112 changing conditions
	for i := range reports {
		var list []health.Condition
		for j := range health.MaxConditions {
			list = append(list, unhealthy("gpu", fmt.Sprintf("GPU-%d-%d", i, j), fmt.Sprintf("R%d", i)))
		}
		require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{BootID: fmt.Sprint(i), Health: report(at.Add(time.Duration(i)*time.Second), list...)}))
	}
	require.Equal(t, int64(health.MaxConditions), e.number("SELECT count(*) FROM conditions"))
	require.Equal(t, int64(signal.MaxPerHour+1), e.number("SELECT count(*) FROM signals"))
	caused := int64(reports*health.MaxConditions + (reports-1)*health.MaxConditions + reports - 1) // begun, ended, booted
	require.Equal(t, fmt.Sprintf("%d signals were dropped: the node caused more than 256 in an hour", caused-signal.MaxPerHour),
		e.text("SELECT detail FROM signals WHERE type = 'signals.dropped'"))
	require.Contains(t, e.conditions(c.NodeID), "gpu GPU-78-0 unhealthy R78")

	e.exec("UPDATE signal_counts SET hour = hour - interval '1 hour'")
	require.Equal(t, []string{"instance.booted"}, e.newSignals(c.NodeID, func() {
		require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{BootID: "next"}))
	}))
	require.Equal(t, int64(1), e.number("SELECT recorded + dropped FROM signal_counts"))
}

// A report without a change updates one row in place, and no condition.
func TestUnchangedReportWritesNoCondition(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	at := time.Now()
	send := func(i int) {
		gpu := unhealthy("gpu", "GPU-1", "Fallen")
		gpu.Since, gpu.Samples = at, 1
		disk := healthy("disk", "")
		disk.Since, disk.Samples = at, i // the number of good samples is not worth a write
		require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{BootID: "boot-1", Health: report(at.Add(time.Duration(i)*time.Minute), gpu, disk)}))
	}
	written := func() string { return e.text("SELECT string_agg(xmin::text, ' ') FROM conditions") }
	send(0)
	before, reported := written(), e.text("SELECT reported_at::text FROM health_reports")
	send(1)
	require.Equal(t, before, written())
	require.NotEqual(t, reported, e.text("SELECT reported_at::text FROM health_reports"))
}

// ConditionCounts counts nodes, not components.
func TestConditionCounts(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	for i := range 3 {
		c, _, _ := e.enroll()
		list := []health.Condition{unhealthy("gpu", "GPU-0", "Fallen"), unhealthy("gpu", "GPU-1", "Fallen")}
		if i > 0 {
			list = append(list, unhealthy("disk", "", "Full"), healthy("node_ready", ""))
		}
		require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{Health: report(time.Now(), list...)}))
	}
	counts, err := e.ConditionCounts(ctx)
	require.NoError(t, err)
	var lines []string
	for _, n := range counts {
		lines = append(lines, fmt.Sprint(n.Checker, n.Reason, n.Nodes))
	}
	require.Equal(t, []string{"gpuFallen3", "diskFull2"}, lines)
}

// A node that reports many checkers counts in a limited number of combinations, those of known checkers
// among them.
func TestConditionCountsOfHostileNode(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	list := []health.Condition{unhealthy("node_ready", "", "NotReady")}
	for i := range 3 * metrics.MaxNodeConditions {
		list = append(list, unhealthy(fmt.Sprint("invented_", i), "", "R"))
	}
	require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{Health: report(time.Now(), list...)}))
	counts, err := e.ConditionCounts(ctx)
	require.NoError(t, err)
	require.Len(t, counts, metrics.MaxNodeConditions+1)
	require.Contains(t, counts, metrics.ConditionCount{Checker: "node_ready", Reason: "NotReady", Nodes: 1})
	require.Contains(t, counts, metrics.ConditionCount{Nodes: 1}, "the others of the node count once")
}
