package clusteragent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
)

// Dashboards of Civo's node agent find their metrics and labels.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, "v1", "cluster-1")
	m.checked("a", "node_ready", "KubeletReady")
	m.acted("a", actionReboot, true)
	m.failures.WithLabelValues("a", actionReboot).Inc()
	m.errors.WithLabelValues(errorState).Inc()
	m.state("a", health.PhaseHealthy, time.Second)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string][]string{}
	for _, f := range families {
		got[f.GetName()] = nil
		for _, l := range f.GetMetric()[0].GetLabel() {
			got[f.GetName()] = append(got[f.GetName()], l.GetName())
		}
	}
	require.Equal(t, map[string][]string{
		"civo_node_agent_info":                            {"cluster_id", "version"},
		"civo_node_agent_health_check_total":              {"checker", "node", "result"},
		"civo_node_agent_recovery_actions_total":          {"action", "mode", "node"},
		"civo_node_agent_recovery_failures_total":         {"action", "node"},
		"civo_node_agent_reconcile_errors_total":          {"reason"},
		"civo_node_agent_node_unhealthy_duration_seconds": {"node"},
		"civo_node_agent_recovery_phase":                  {"node", "phase"},
		"civo_node_agent_breaker_open":                    nil,
	}, got)
}
