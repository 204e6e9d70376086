package e2e

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMetricNames verifies the metric names that dashboards use.
func TestMetricNames(t *testing.T) {
	nodeHost, _ := enrolled(t, "metrics")
	act(t, "node", "drain", nodeHost, "--yes")
	eventually(t, "the agent waits", func() bool { return show(t, nodeHost).LastHeartbeatAt != nil })
	for url, names := range map[string][]string{
		shared.Getenv("GPUAAS_WORKER_METRICS_URL"): {
			"gpuaas_operations_total", "gpuaas_operation_duration_seconds", "gpuaas_vault_request_duration_seconds",
			"temporal_request", "temporal_num_pollers", "temporal_worker_task_slots_available",
			"temporal_workflow_task_schedule_to_start_latency_seconds", "temporal_request_latency_seconds",
		},
		shared.Getenv("GPUAAS_API_METRICS_URL"): {
			"gpuaas_nodes", "gpuaas_state_age_seconds", "gpuaas_tasks_total",
			"gpuaas_task_dispatch_seconds", "gpuaas_waiting_agents", "gpuaas_enrollments_total",
			"gpuaas_certificate_expiry_seconds", "gpuaas_vault_request_duration_seconds", "temporal_request",
		},
	} {
		text := fetch(t, url)
		for _, name := range names {
			require.True(t, strings.Contains(text, "\n# TYPE "+name), "%s does not publish %s", url, name) //nolint:testifylint // the whole text would bury the name
		}
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), conditionTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(raw)
}
