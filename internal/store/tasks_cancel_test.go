package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Only held tasks that were canceled or voided are returned.
func TestCanceledTasks(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	kept, canceled := e.held(c, f, "kept", task.NodeProbe), e.held(c, f, "canceled", task.WorkloadDrain)
	asked := e.held(c, f, "asked", task.WorkloadCordon)
	have := []string{asked.TaskID, canceled.TaskID, kept.TaskID, schema.NewID()}
	cancellations := func(c nodeapi.Caller, have []string) []string {
		ids, err := e.CanceledTasks(ctx, c, have)
		require.NoError(t, err)
		return ids
	}
	require.Empty(t, cancellations(c, have))
	_, err := e.CancelTask(ctx, canceled.TaskID, "wrong node", operator)
	require.NoError(t, err)
	require.NoError(t, e.SetActivityState(ctx, asked.TaskID, nodeapi.ActivityState{Cancel: true}))
	require.Equal(t, []string{canceled.TaskID, asked.TaskID}, cancellations(c, have))
	require.Empty(t, cancellations(c, have[2:]), "a node gets no task that it does not hold")
	other, _, _ := e.enroll()
	require.Empty(t, cancellations(other, have), "another node's")

	require.NoError(t, e.Void(ctx, f))
	require.Equal(t, []string{kept.TaskID, canceled.TaskID, asked.TaskID}, cancellations(c, have))
}

// A cancel that the node never received does not keep its lost task: the second
// one ends it, and a resume, which would be dispatched to no one, is refused.
func TestCancelOfATaskThatIsLostMeanwhile(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.begun(c, f, "drain")
	_, err := e.CancelTask(ctx, row.TaskID, "wrong node", operator)
	require.NoError(t, err)
	e.stale()
	require.Equal(t, activities.ReclaimLost, e.reclaim()[row.TaskID])
	_, err = e.ResumeTask(ctx, row.TaskID, "the node is back", operator)
	requireKind(t, err, schema.KindTaskStatus, "cancel_requested")
	require.Contains(t, schema.AsError(err).Next, "gpuaas task cancel "+row.TaskID)
	v, err := e.CancelTask(ctx, row.TaskID, "the node is gone", operator)
	require.NoError(t, err)
	require.Equal(t, task.Canceled, v.Status)
	require.Contains(t, v.Result.Message, "the node is gone")
	var signaled bool
	for _, m := range e.messages() {
		signaled = signaled || m.Event != nil && *m.Event == *backEvent(c, f, "drain")
	}
	require.True(t, signaled, "its parked operation is signaled")
	_, err = e.CancelTask(ctx, row.TaskID, "again", operator)
	requireKind(t, err, schema.KindTaskStatus, "task_over")
}
