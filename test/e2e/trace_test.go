package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestTraceOfDrain: the command, the API, the worker and the node's task are one trace, whose ID is the
// correlation ID of the operation. TestNoSecretLeaks looks for secrets in the spans that the collector
// has by then.
func TestTraceOfDrain(t *testing.T) {
	t.Parallel()
	host, _ := enrolled(t, "trace")
	act(t, "node", "drain", host, "--yes")
	op := decode[lifecycle.OperationStatus](t, ok(t, "op", "show", host, "-o", "json")).Operation
	id := strings.ReplaceAll(op.CorrelationID, "-", "")
	require.Len(t, id, 32)

	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	want := []string{ // the service that exports a span, and its name
		"gpuaas: gpuaas node drain", "gpuaas-api: POST /api/v1/admin/nodes/{node}/drain",
		"gpuaas-worker: RunWorkflow:" + plan.Workflow, "gpuaas-worker: RunActivity:ClaimNode",
		"gpuaas-api: agent " + string(task.WorkloadCordon), "gpuaas-api: agent " + string(task.WorkloadDrain),
	}
	eventually(t, "the collector has the spans of the drain", func() bool {
		missing := slices.Clone(want)
		for _, s := range shared.collector.Trace(id) {
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == s.Service+": "+s.Name })
			if s.Service == "gpuaas" || strings.HasPrefix(s.Name, "POST ") { // the command, its request, and those of the agent
				require.Equal(t, op.CorrelationID, s.Attributes["correlation_id"], s.Name)
			}
		}
		return len(missing) == 0
	})
}
