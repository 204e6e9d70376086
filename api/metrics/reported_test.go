package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func collector(f *fakeCounts) *FleetCollector {
	return NewFleetCollector(f, func() bool { return true }, slog.New(slog.DiscardHandler))
}

// series returns the values of a gauge by its labels, sorted by name, as the next scrape after 15 s finds
// them.
func (c *FleetCollector) series(t *testing.T, name string) map[string]float64 {
	t.Helper()
	c.readAt = time.Time{}
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if family.GetName() == name {
				found[strings.Join(labels, " ")] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func TestAgentGauge(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{agents: []AgentCount{{"v0.2.0", 40}, {"v0.1.0", 1}, {"other", 1}}}
	require.Equal(t, map[string]float64{"v0.2.0": 40, "v0.1.0": 1, "other": 1}, collector(f).series(t, "gpuaas_node_agents"))
}

// A node that reports a new version before each scrape adds a limited number of series in all, and leaves
// places for the versions of the fleet.
func TestHostileVersions(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{}
	c, seen := collector(f), map[string]bool{}
	for i := range 100 {
		f.agents = []AgentCount{{fmt.Sprint("v9.9.", i), 1}}
		for version := range c.series(t, "gpuaas_node_agents") {
			seen[version] = true
		}
	}
	require.Len(t, seen, maxVersionSeries/2+1)
	f.agents = []AgentCount{{"v0.2.0", 40}, {"v9.9.100", 1}}
	require.Equal(t, map[string]float64{"v0.2.0": 40, "other": 1}, c.series(t, "gpuaas_node_agents"))
}

func TestConditionGauge(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{conditions: []ConditionCount{{"gpu", "Fallen", 2}, {"", "", 5}}}
	require.Equal(t, map[string]float64{"gpu Fallen": 2, "other other": 5}, collector(f).series(t, "gpuaas_node_conditions"))
	c := NewFleetCollector(f, func() bool { return false }, slog.New(slog.DiscardHandler))
	require.Zero(t, testutil.CollectAndCount(c, "gpuaas_node_conditions"))
}

// However many reasons nodes report, and however often these change, the number of series is bounded, and
// the checkers of this version come first.
func TestHostileConditions(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{}
	c, seen := collector(f).WithCheckers([]string{"gpu"}), map[string]bool{}
	for scrape := range 20 {
		f.conditions = nil
		for i := range 200 {
			f.conditions = append(f.conditions, ConditionCount{"invented", fmt.Sprintf("R%d_%d", scrape, i), 1})
		}
		f.conditions = append(f.conditions, ConditionCount{"gpu", "Fallen", 1})
		for labels := range c.series(t, "gpuaas_node_conditions") {
			seen[labels] = true
		}
	}
	require.Len(t, seen, maxConditionSeries/2+1)
	require.Contains(t, seen, "gpu Fallen", "although 200 others were counted before it")

	f.conditions = nil
	for i := range 2 * maxConditionSeries {
		f.conditions = append(f.conditions, ConditionCount{"gpu", fmt.Sprint("R", i), 2})
	}
	require.Len(t, c.series(t, "gpuaas_node_conditions"), maxConditionSeries/2+1, "the places of the invented ones are taken")
}

func TestGPUGauge(t *testing.T) {
	t.Parallel()
	f := &fakeCounts{nodes: []NodeCount{
		{State: lifecycle.NodeActive, SKU: "h100", Region: "fra1", Nodes: 3, GPUs: 24},
		{State: lifecycle.NodeDrained, SKU: "h100", Region: "fra1", Nodes: 1, GPUs: 8},
	}}
	got := collector(f).series(t, "gpuaas_gpus")
	require.InDelta(t, 24, got["fra1 h100 active"], 0)
	require.InDelta(t, 8, got["fra1 h100 drained"], 0)
	require.Zero(t, got["  removed"], "a state without nodes reads 0")
	require.Contains(t, got, "  removed")
}

// The gauges of the ages of waiting work and of certificates.
func TestAgeGauges(t *testing.T) {
	t.Parallel()
	c := collector(&fakeCounts{}).WithQueue(func(context.Context) ([]QueueCount, error) {
		return []QueueCount{{Tasks: "workflow", Waiting: 7, OldestSeconds: 61}, {Tasks: "activity"}}, nil
	})
	require.Equal(t, map[string]float64{"workflow": 61, "activity": 0}, c.series(t, "gpuaas_queue_age_seconds"))
	require.Equal(t, map[string]float64{"workflow": 7, "activity": 0}, c.series(t, "gpuaas_queue_tasks"))
	require.Equal(t, map[string]float64{"pending": 0, "dispatched": 0, "running": 75, "lost": 0}, c.series(t, "gpuaas_task_age_seconds"))
	require.Equal(t, map[string]float64{"": 3600}, c.series(t, "gpuaas_certificate_expiry_seconds"))

	c.WithQueue(func(context.Context) ([]QueueCount, error) { return nil, errors.New("down") })
	require.Empty(t, c.series(t, "gpuaas_queue_age_seconds"), "absent while Temporal does not respond")
	require.NotEmpty(t, c.series(t, "gpuaas_nodes"))
}
