package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// -record writes the runs' histories as replay fixtures of package workflows. Use the
// binaries of the release that the folder is named after.
var recordTo = flag.String("record", "", "write histories to workflows/testdata/replay/<this>/")

func dial(t *testing.T) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: shared.Getenv("TEMPORAL_ADDRESS"), Namespace: shared.Getenv("TEMPORAL_NAMESPACE")})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// actions reads the server's own counters of billable actions in our namespace, by type.
// Queries are excluded, because people and the Web UI cause them, not the operation.
func actions(t *testing.T) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), conditionTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, shared.Getenv("GPUAAS_TEMPORAL_METRICS_URL"), nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	require.NoError(t, err)
	require.Contains(t, families, "action_total", "the server counts no actions")
	out := map[string]int{}
	for _, m := range families["action_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["namespace"] == shared.Getenv("TEMPORAL_NAMESPACE") && labels["action_type"] != "grpc_QueryWorkflow" {
			out[labels["action_type"]] += int(m.GetCounter().GetValue())
		}
	}
	return out
}

// actionsSince returns how many billable actions the server counted since before, with
// their types.
func actionsSince(t *testing.T, before map[string]int) (total int, types map[string]int) {
	t.Helper()
	types = actions(t)
	for name, count := range types {
		types[name] = count - before[name]
		total += types[name]
	}
	maps.DeleteFunc(types, func(_ string, n int) bool { return n == 0 })
	return total, types
}

// pauseSchedules pauses the schedules until the test ends, because the server counts their
// actions too, and cancels their open runs.
func pauseSchedules(t *testing.T) {
	t.Helper()
	c := dial(t)
	for _, s := range lifecycle.Schedules() {
		h := c.ScheduleClient().GetHandle(t.Context(), s.ID)
		require.NoError(t, h.Pause(t.Context(), client.SchedulePauseOptions{Note: "a test counts actions"}))
		t.Cleanup(func() {
			require.NoError(t, h.Unpause(context.WithoutCancel(t.Context()), client.ScheduleUnpauseOptions{}))
		})
		eventually(t, "no run of "+s.ID, func() bool {
			d, err := h.Describe(t.Context())
			require.NoError(t, err)
			for _, r := range d.Info.RunningWorkflows {
				_ = c.CancelWorkflow(t.Context(), r.WorkflowID, r.FirstExecutionRunID) // it may have ended
			}
			return len(d.Info.RunningWorkflows) == 0
		})
	}
}

func history(t *testing.T, c client.Client, workflowID, runID string) *historypb.History {
	t.Helper()
	out := &historypb.History{}
	events := c.GetWorkflowHistory(t.Context(), workflowID, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		require.NoError(t, err)
		out.Events = append(out.Events, e)
	}
	return out
}

func historyLength(t *testing.T, op lifecycle.Operation) int {
	t.Helper()
	return len(history(t, dial(t), op.WorkflowID, op.RunID).GetEvents())
}

// currentDetails returns the Web UI's details of the node's running operation.
func currentDetails(t *testing.T, nodeID string) string {
	t.Helper()
	return detailsOf(t, lifecycle.NodeWorkflowID(show(t, nodeID).Host, nodeID))
}

// detailsOf returns the Web UI's details of a running workflow.
func detailsOf(t *testing.T, workflowID string) string {
	t.Helper()
	value, err := dial(t).QueryWorkflow(t.Context(), workflowID, "", "__temporal_workflow_metadata")
	require.NoError(t, err)
	var metadata sdkpb.WorkflowMetadata
	require.NoError(t, value.Get(&metadata))
	return metadata.GetCurrentDetails()
}

// runs lists all runs of the node, oldest first.
func runs(t *testing.T, c client.Client, nodeID string) [][2]string {
	t.Helper()
	var out [][2]string
	answer, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
		Query: fmt.Sprintf("%s = %q", lifecycle.AttrNodeID, nodeID),
	})
	require.NoError(t, err)
	for _, e := range answer.GetExecutions() {
		out = append(out, [2]string{e.GetType().GetName(), e.GetExecution().GetRunId()})
	}
	return out
}

// record writes the node's closed runs as replay fixtures if the flag is set.
func record(t *testing.T, nodeID, name string) {
	t.Helper()
	if *recordTo == "" {
		return
	}
	c := dial(t)
	for i, r := range runs(t, c, nodeID) {
		plan, _ := lifecycle.PlanOfWorkflow(r[0])
		workflowID := lifecycle.WorkflowID(plan.Action, show(t, nodeID).Host, nodeID)
		writeHistory(t, fmt.Sprintf("%s-%s-%d", name, strings.ToLower(r[0]), i), history(t, c, workflowID, r[1]))
	}
}

// writeHistory writes one history as a replay fixture.
func writeHistory(t *testing.T, name string, h *historypb.History) {
	t.Helper()
	dir := filepath.Join("..", "..", "workflows", "testdata", "replay", *recordTo)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	raw, err := protojson.Marshal(h)
	require.NoError(t, err)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err = w.Write(raw)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json.gz"), packed.Bytes(), 0o644))
}
