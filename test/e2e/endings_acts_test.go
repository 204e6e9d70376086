package e2e

import (
	"strings"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// end ends the case's run, except for the bug, for which there is failRuns.
func (s *sweep) end(e *endedRun) {
	ctx, id := s.Context(), e.operation.WorkflowID
	switch e.ending {
	case endReopen:
		e.before = s.operationOf(e)
		fallthrough
	case endTerminate:
		require.NoError(s.T, s.temporal.TerminateWorkflow(ctx, id, "", "test"), e)
	case endCancel:
		require.NoError(s.T, s.temporal.CancelWorkflow(ctx, id, ""), e)
	case endDelete:
		deleteRun(s.T, s.temporal, id)
	case endGarbage:
		s.sendGarbage(e)
	case endResetFirst, endResetMid, endResetLast:
		points := s.resetPoints(e)
		at := map[string]int{endResetFirst: 0, endResetMid: len(points) / 2, endResetLast: len(points) - 1}[e.ending]
		s.reset(e, points[at])
	case endResetAt:
		points := s.resetPoints(e)
		s.reset(e, points[min(e.point, len(points)-1)])
	}
}

// sendGarbage sends signals and updates that the control plane never sends.
func (s *sweep) sendGarbage(e *endedRun) {
	ctx, id, huge := s.Context(), e.operation.WorkflowID, strings.Repeat("x", 100_000)
	for _, g := range []any{nil, "text", 12, map[string]any{"event": 7}, huge,
		lifecycle.AgentEvent{Event: lifecycle.EventNodeRemoved, NodeID: huge},
		lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: e.id, Incarnation: -1}} {
		require.NoError(s.T, s.temporal.SignalWorkflow(ctx, id, "", lifecycle.SignalAgent, g), e)
		require.NoError(s.T, s.temporal.SignalWorkflow(ctx, id, "", "no-such-signal", g), e)
	}
	for _, g := range []any{nil, "text", 12, map[string]any{"decision": 7}, lifecycle.ResolveRequest{Decision: lifecycle.Decision(huge), Reason: huge, By: huge}} {
		u, err := s.temporal.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{WorkflowID: id, UpdateName: lifecycle.UpdateResolve,
			Args: []any{g}, WaitForStage: client.WorkflowUpdateStageCompleted})
		if err == nil {
			err = u.Get(ctx, nil)
		}
		require.Error(s.T, err, e)
	}
}

// resetPoints are the run's completed workflow tasks.
func (s *sweep) resetPoints(e *endedRun) (points []int64) {
	for _, event := range history(s.T, s.temporal, e.operation.WorkflowID, "").GetEvents() {
		if event.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			points = append(points, event.GetEventId())
		}
	}
	require.NotEmpty(s.T, points, e)
	return points
}

func (s *sweep) reset(e *endedRun, to int64) (runID string) {
	return temporaltest.Reset(s.T, s.temporal, shared.Getenv("TEMPORAL_NAMESPACE"), e.operation.WorkflowID, "", to)
}
