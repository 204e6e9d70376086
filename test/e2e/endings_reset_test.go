package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestResetOfAFinishedDrain resets finished drains, each one to another of its workflow
// tasks. Nothing runs a second time, the record stays, and the node can be used.
func TestResetOfAFinishedDrain(t *testing.T) {
	const size = 8 // more than a drain has workflow tasks
	s := &sweep{T: t, temporal: dial(t), prefix: host(t, "finished"), size: size}
	fleet := startFleet(t, size, s.prefix, "--task-time", "1ms", "--workloads", "1")
	fleet.waitActive(t)
	var all []*endedRun
	for i := range size {
		all = append(all, &endedRun{action: lifecycle.ActionDrain, ending: "reset after its end", host: fmt.Sprintf("%s-%04d", s.prefix, i+1)})
	}
	s.prepare(all)
	s.each(all, func(e *endedRun) { e.operation = s.request(e, e.action, e.options) })
	drained := func(v wire.NodeView) bool { return v.State == lifecycle.NodeDrained && v.Operation == nil }
	eventually(t, "all are drained", func() bool { return fleet.countNodes(t, drained) == size })

	covered := map[int]bool{}
	newest := map[*endedRun]string{}
	for i, e := range all {
		points := s.resetPoints(e)
		require.LessOrEqual(t, len(points), size)
		covered[i%len(points)] = true
		require.GreaterOrEqual(t, len(all), len(points))
		newest[e] = s.reset(e, points[i%len(points)])
	}
	eventually(t, "the new runs close", func() bool {
		for e, run := range newest {
			d, err := s.temporal.DescribeWorkflowExecution(t.Context(), e.operation.WorkflowID, run)
			require.NoError(t, err)
			if d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
				return false
			}
		}
		return true
	})
	require.Equal(t, size, fleet.countNodes(t, drained))
	for _, e := range all {
		op := decode[lifecycleStep](t, ok(t, "op", "show", e.host, "-o", "json")).Operation
		require.Equal(t, e.operation.OperationID, op.OperationID)
		require.Equal(t, lifecycle.OperationCompleted, op.Status)
		s.request(e, lifecycle.ActionReactivate, lifecycle.Options{})
	}
	eventually(t, "all are active again", func() bool {
		return fleet.countNodes(t, func(v wire.NodeView) bool { return v.State == lifecycle.NodeActive && v.Operation == nil }) == size
	})
	const tasks = 4 * size // cordon and drain, probe and uncordon
	eventually(t, "the report has the last tasks", func() bool { return fleet.count(t, "works") >= tasks })
	require.Equal(t, tasks, fleet.count(t, "works"), "a reset of a finished drain runs no task")
	t.Logf("%d finished drains reset to %d workflow tasks: 0 stranded", size, len(covered))
}
