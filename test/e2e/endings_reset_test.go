package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

var endingsFull = flag.Bool("endings-full", false, "also reset a drain and a provision to each of their workflow tasks")

// mostPoints is more than a run of TestEndings has workflow tasks.
const mostPoints = 12

// allResets are resets of a drain and a provision, running and parked, to each workflow
// task.
func allResets() (all []*endedRun) {
	for _, a := range []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionProvision} {
		for point := range mostPoints {
			all = append(all, &endedRun{action: a, ending: endResetAt, point: point},
				&endedRun{action: a, ending: endResetAt, point: point, parked: true})
		}
	}
	return all
}

func (s *sweep) operationOf(e *endedRun) lifecycle.Operation {
	s.Helper()
	var view wire.OperationView
	callAdminAPI(s.T, http.MethodGet, "/operations/"+e.operation.OperationID, nil, &view)
	return view.Operation
}

// reopen resets runs that were terminated when the operations are abandoned. A parked
// operation is parked again, with the same options, and one that waits for its node's
// enrollment has a deadline again.
func (s *sweep) reopen(all []*endedRun) {
	s.Helper()
	abandoned := func(e *endedRun) bool { return s.operationOf(e).Status == lifecycle.OperationAbandoned }
	s.each(all, func(e *endedRun) { passWatchGrace(s.T, e.id) })
	triggerSchedule(s.T, lifecycle.ScheduleWatch)
	eventually(s.T, "the operations are abandoned", func() bool {
		return !slices.ContainsFunc(all, func(e *endedRun) bool { return !abandoned(e) })
	})
	s.each(all, func(e *endedRun) {
		points := s.resetPoints(e)
		s.reset(e, points[len(points)-1])
	})
	triggerSchedule(s.T, lifecycle.ScheduleWatch)
	eventually(s.T, "the operations continue", func() bool { return !slices.ContainsFunc(all, abandoned) })
	s.each(all, func(e *endedRun) {
		op := s.operationOf(e)
		switch {
		case e.parked:
			require.Equal(s.T, lifecycle.OperationParked, op.Status, e)
			require.Equal(s.T, e.before.Stuck.Reason, op.Stuck.Reason, e)
			require.Equal(s.T, optionsOf(e.before), optionsOf(op), e)
		case e.action == lifecycle.ActionEnroll || e.action == lifecycle.ActionReissueEnrollment:
			require.NotNil(s.T, op.DeadlineAt, e)
			require.False(s.T, op.DeadlineAt.Before(*e.before.DeadlineAt), e)
		}
	})
}

// optionsOf are the commands of a parked operation without the time since which it is
// parked: a run that was reset may park again.
func optionsOf(op lifecycle.Operation) (commands []string) {
	for _, o := range op.Stuck.Options {
		commands = append(commands, regexp.MustCompile(` --stuck-since \S+`).ReplaceAllString(o.Command, ""))
	}
	return commands
}

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
