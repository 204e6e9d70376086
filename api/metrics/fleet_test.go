package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// fakeCounts is a database with nodes only.
type fakeCounts struct {
	nodes      []NodeCount
	conditions []ConditionCount
	drifts     []DriftCount
	agents     []AgentCount
	err        error
}

func (f *fakeCounts) AgentCounts(context.Context) ([]AgentCount, error) { return f.agents, nil }

func (f *fakeCounts) NodeCounts(context.Context) ([]NodeCount, error)   { return f.nodes, nil }
func (f *fakeCounts) StuckCounts(context.Context) ([]StuckCount, error) { return nil, nil }
func (f *fakeCounts) StuckNodeCounts(context.Context) ([]StuckNodeCount, error) {
	return []StuckNodeCount{{Row: "silent", Nodes: 3}}, nil
}
func (f *fakeCounts) OutboxAge(context.Context) (float64, error) { return 0, nil }
func (f *fakeCounts) TableSizes(context.Context) ([]TableSize, error) {
	return []TableSize{{Table: "audit_events", Rows: 7, Bytes: 8192}}, nil
}
func (f *fakeCounts) RecoveryCounts(context.Context) (RecoveryCounts, error) {
	return RecoveryCounts{BreakerOpen: true, Incidents: 1, Nodes: 30, Used: 2, Blocked: 28, Unapproved: 3, RoundAge: 12}, nil
}

func (f *fakeCounts) PhaseCounts(context.Context) ([]PhaseCount, error) {
	return []PhaseCount{{Phase: "WaitingReboot", Nodes: 2, OldestSeconds: 90}}, nil
}

func (f *fakeCounts) SurplusCounts(context.Context) ([]SurplusCount, error) {
	return []SurplusCount{{Provider: "libvirt", Leftovers: 2, Duplicates: 1}}, nil
}
func (f *fakeCounts) DriftCounts(context.Context) ([]DriftCount, error) { return f.drifts, nil }
func (f *fakeCounts) ConditionCounts(context.Context) ([]ConditionCount, error) {
	return f.conditions, nil
}
func (f *fakeCounts) RetentionAge(context.Context) (float64, error) { return 60, nil }
func (f *fakeCounts) TaskLeases(context.Context) ([]TaskCount, error) {
	return []TaskCount{{Status: task.Running, Tasks: 4, OldestSeconds: 75}}, nil
}

func (f *fakeCounts) IdentityAttention(context.Context) ([]IdentityCount, error) {
	return []IdentityCount{{"operator", 2}}, nil
}
func (f *fakeCounts) CertificateCounts(context.Context) (CertificateCounts, error) {
	return CertificateCounts{Held: 2, ExpirySeconds: 3600, ShareLeft: 0.5}, f.err
}

// However many SKUs and regions there are, the number of series is bounded, and
// the nodes and the GPUs of all series add up.
func TestNodeSeriesAreBounded(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{nodes: []NodeCount{{State: lifecycle.NodeActive, SKU: "h100", Region: "fra1", Nodes: 7, GPUs: 56, OldestSeconds: 60}}}
	for i := range int64(maxNodeSeries + 10) {
		f.nodes = append(f.nodes, NodeCount{State: lifecycle.NodeActive, SKU: fmt.Sprint(i), Region: "r", Nodes: 1, GPUs: i % 5, OldestSeconds: 60})
	}
	c := collector(f)
	nodes, gpus, wanted := c.series(t, "gpuaas_nodes"), c.series(t, "gpuaas_gpus"), int64(0)
	for _, n := range f.nodes[maxNodeSeries:] {
		wanted += n.GPUs
	}
	require.LessOrEqual(t, len(nodes), maxNodeSeries+2*len(lifecycle.NodeStates()))
	require.InDelta(t, 7, nodes["fra1 h100 active"], 0)
	require.InDelta(t, 11, nodes["other other active"], 0)
	require.InDelta(t, 56, gpus["fra1 h100 active"], 0)
	require.InDelta(t, wanted, gpus["other other active"], 0, "the GPUs of all SKUs of the series")
	require.Contains(t, nodes, "  removed")
	require.Zero(t, nodes["  removed"])
}

// The database's gauges are those of its tables and of the deletion of old records.
func TestTableGauges(t *testing.T) {
	t.Parallel()
	c := NewFleetCollector(&fakeCounts{}, func() bool { return true }, slog.New(slog.DiscardHandler)).
		WithRequests(func(context.Context) (int, error) { return 2, nil })
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP gpuaas_retention_age_seconds Time since old records were last deleted completely.
# TYPE gpuaas_retention_age_seconds gauge
gpuaas_retention_age_seconds 60
# HELP gpuaas_table_bytes Size of each table of the database, with its indexes.
# TYPE gpuaas_table_bytes gauge
gpuaas_table_bytes{table="audit_events"} 8192
# HELP gpuaas_table_rows Rows of each table of the database, as Postgres estimates them.
# TYPE gpuaas_table_rows gauge
gpuaas_table_rows{table="audit_events"} 7
`), "gpuaas_retention_age_seconds", "gpuaas_table_bytes", "gpuaas_table_rows"))
}

// A class without machines reads 0.
func TestSurplusGauge(t *testing.T) {
	t.Parallel()
	c := NewFleetCollector(&fakeCounts{}, func() bool { return true }, slog.New(slog.DiscardHandler)).
		WithRequests(func(context.Context) (int, error) { return 2, nil })
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP gpuaas_surplus_machines Machines at providers that no instance owns, and second machines of instances (duplicate), by provider and class.
# TYPE gpuaas_surplus_machines gauge
gpuaas_surplus_machines{class="duplicate",provider="libvirt"} 1
gpuaas_surplus_machines{class="leftover",provider="libvirt"} 2
gpuaas_surplus_machines{class="orphan",provider="libvirt"} 0
`), "gpuaas_surplus_machines"))
}

func TestRecoveryGauges(t *testing.T) {
	t.Parallel()
	c := NewFleetCollector(&fakeCounts{}, func() bool { return true }, slog.New(slog.DiscardHandler))
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP gpuaas_recovery_breaker_open 1 while the breaker of health recovery stops repairs.
# TYPE gpuaas_recovery_breaker_open gauge
gpuaas_recovery_breaker_open 1
# HELP gpuaas_recovery_budget_blocked_nodes Nodes whose repair a budget stops.
# TYPE gpuaas_recovery_budget_blocked_nodes gauge
gpuaas_recovery_budget_blocked_nodes 28
# HELP gpuaas_recovery_budget_used Operations that use the budgets of health recovery.
# TYPE gpuaas_recovery_budget_used gauge
gpuaas_recovery_budget_used 2
# HELP gpuaas_recovery_incidents Faults of many nodes at once.
# TYPE gpuaas_recovery_incidents gauge
gpuaas_recovery_incidents 1
# HELP gpuaas_recovery_phase_age_seconds Time since the oldest node in a health phase entered it.
# TYPE gpuaas_recovery_phase_age_seconds gauge
gpuaas_recovery_phase_age_seconds{phase="Drain"} 0
gpuaas_recovery_phase_age_seconds{phase="Replace"} 0
gpuaas_recovery_phase_age_seconds{phase="Unhealthy"} 0
gpuaas_recovery_phase_age_seconds{phase="Unknown"} 0
gpuaas_recovery_phase_age_seconds{phase="WaitingReboot"} 90
# HELP gpuaas_recovery_phase_nodes Nodes by health phase other than Healthy.
# TYPE gpuaas_recovery_phase_nodes gauge
gpuaas_recovery_phase_nodes{phase="Drain"} 0
gpuaas_recovery_phase_nodes{phase="Replace"} 0
gpuaas_recovery_phase_nodes{phase="Unhealthy"} 0
gpuaas_recovery_phase_nodes{phase="Unknown"} 0
gpuaas_recovery_phase_nodes{phase="WaitingReboot"} 2
# HELP gpuaas_recovery_round_age_seconds Time since the last round of health recovery; 0 if there was none.
# TYPE gpuaas_recovery_round_age_seconds gauge
gpuaas_recovery_round_age_seconds 12
# HELP gpuaas_recovery_unapproved_nodes Nodes whose repair does not start because its first rung needs an approval.
# TYPE gpuaas_recovery_unapproved_nodes gauge
gpuaas_recovery_unapproved_nodes 3
# HELP gpuaas_recovery_unhealthy_nodes Nodes in a health phase other than Healthy.
# TYPE gpuaas_recovery_unhealthy_nodes gauge
gpuaas_recovery_unhealthy_nodes 30
`), "gpuaas_recovery_breaker_open", "gpuaas_recovery_budget_blocked_nodes", "gpuaas_recovery_budget_used", "gpuaas_recovery_incidents",
		"gpuaas_recovery_round_age_seconds", "gpuaas_recovery_unapproved_nodes", "gpuaas_recovery_unhealthy_nodes", "gpuaas_recovery_phase_nodes", "gpuaas_recovery_phase_age_seconds"))
}

// When a number cannot be read, no gauge keeps its old value.
func TestGaugesAreAbsentWithoutDatabase(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{}
	var log strings.Builder
	c := NewFleetCollector(f, func() bool { return true }, slog.New(slog.NewTextHandler(&log, nil)))
	require.Positive(t, testutil.CollectAndCount(c))
	c.readAt, f.err = time.Time{}, schema.NewError(schema.KindServiceUnavailable, "down")
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
	require.Contains(t, log.String(), "down")
}

// TestStuckNodes: every row of the stuck table about nodes has a series, also without nodes.
func TestStuckNodes(t *testing.T) {
	t.Parallel()
	c := NewFleetCollector(&fakeCounts{}, func() bool { return true }, slog.New(slog.DiscardHandler)).
		WithRequests(func(context.Context) (int, error) { return 2, nil })
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP gpuaas_stuck_nodes Nodes and requests that need attention although no operation of them is parked, by row of the stuck table.
# TYPE gpuaas_stuck_nodes gauge
gpuaas_stuck_nodes{row="certificate"} 0
gpuaas_stuck_nodes{row="draining"} 0
gpuaas_stuck_nodes{row="pending"} 2
gpuaas_stuck_nodes{row="silent"} 3
gpuaas_stuck_nodes{row="terminating"} 0
`), "gpuaas_stuck_nodes"))
}
