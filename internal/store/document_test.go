package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Claim, Advance and Finish store the operation's status document with the
// progress; a call without one keeps the last.
func TestOperationDocument(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	plan, _ := lifecycle.PlanOf(lifecycle.ActionProvision, lifecycle.Options{})
	claimed := &lifecycle.OperationStatus{}
	plan.Begin(&claimed.Operation, time.Now().UTC())
	r := request(n.ID, lifecycle.ActionProvision)
	r.Document = claimed
	c, err := e.Claim(t.Context(), r)
	require.NoError(t, err)
	f := c.Fence
	stored := func() (d lifecycle.OperationStatus) {
		var raw []byte
		require.NoError(t, e.raw.QueryRow(t.Context(), "SELECT document FROM operations WHERE operation_id = $1", f.OperationID).Scan(&raw))
		if raw != nil {
			require.NoError(t, json.Unmarshal(raw, &d))
		}
		return d
	}
	require.Equal(t, *claimed, stored())
	op, err := e.Operation(t.Context(), f.OperationID)
	require.NoError(t, err)
	require.Equal(t, claimed.Operation.Phases, op.Operation.Phases)
	require.Equal(t, lifecycle.OperationRunning, op.Operation.Status)
	listed := e.operations(n.ID, true)[0]
	require.Equal(t, plan.Phases[0].Name, listed.Phase)
	require.WithinDuration(t, *claimed.Operation.DeadlineAt, *listed.DeadlineAt, time.Millisecond)
	document := func(phase string) *lifecycle.OperationStatus {
		return &lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: f.OperationID, Outcome: phase}}
	}
	require.NoError(t, e.Advance(t.Context(), f, activities.Advance{Step: 1, Phase: "create", Document: document("create")}))
	require.Equal(t, "create", stored().Operation.Outcome)
	require.NoError(t, e.Advance(t.Context(), f, activities.Advance{Step: 2, Phase: "boot"}))
	require.Equal(t, "create", stored().Operation.Outcome)
	require.NoError(t, e.Advance(t.Context(), f, activities.Advance{Step: 1, Phase: "create", Document: document("late")}))
	require.Equal(t, "create", stored().Operation.Outcome, "a repeated step changes nothing")
	require.NoError(t, e.Finish(t.Context(), f, activities.Finish{Status: lifecycle.OperationCompleted, Document: document("done")}))
	require.Equal(t, "done", stored().Operation.Outcome)
}

// Every audit row of a request names the interface of the request, the task's included.
func TestAuditCarriesVia(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	before := len(e.chain(c.NodeID))
	r := request(c.NodeID, lifecycle.ActionDrain)
	r.Via = "temporal"
	claim, err := e.Claim(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, "temporal", claim.Fence.Via)
	row := e.dispatch(claim.Fence, "drain", task.WorkloadDrain)
	require.NoError(t, e.Advance(t.Context(), claim.Fence, activities.Advance{Step: 1, Phase: "drain",
		Decision: &lifecycle.ResolveRequest{Decision: lifecycle.DecisionRetry, By: "bob@ops", Via: "api"}}))
	_, err = e.CancelTask(t.Context(), row.TaskID, "not needed", audit.Subject{Actor: "bob@ops", Via: "api"})
	require.NoError(t, err)
	require.NoError(t, e.Finish(t.Context(), claim.Fence, activities.Finish{Status: lifecycle.OperationCompleted}))
	via := map[string]string{}
	for _, event := range e.chain(c.NodeID)[before:] {
		via[event.Action+" "+event.Result] = event.Via
	}
	require.Equal(t, map[string]string{"nodes.drain accepted": "temporal", "tasks.created succeeded": "temporal",
		"operations.resolve accepted": "api", "tasks.cancel accepted": "api", "tasks.finished " + audit.Canceled: "api",
		"nodes.drain succeeded": "temporal"}, via)
}
