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
	kept, cancelled := e.held(c, f, "kept", task.NodeProbe), e.held(c, f, "cancelled", task.WorkloadDrain)
	told := e.held(c, f, "told", task.WorkloadCordon)
	have := []string{told.TaskID, cancelled.TaskID, kept.TaskID, schema.NewID()}
	news := func(c nodeapi.Caller, have []string) []string {
		ids, err := e.CanceledTasks(ctx, c, have)
		require.NoError(t, err)
		return ids
	}
	require.Empty(t, news(c, have))
	_, err := e.CancelTask(ctx, cancelled.TaskID, "wrong node", operator)
	require.NoError(t, err)
	require.NoError(t, e.SetActivityState(ctx, told.TaskID, nodeapi.ActivityState{Cancel: true}))
	require.Equal(t, []string{cancelled.TaskID, told.TaskID}, news(c, have))
	require.Empty(t, news(c, have[2:]), "what the node does not hold is no news to it")
	other, _, _ := e.enroll()
	require.Empty(t, news(other, have), "another node's")

	require.NoError(t, e.Void(ctx, f))
	require.Equal(t, []string{kept.TaskID, cancelled.TaskID, told.TaskID}, news(c, have))
}

// A cancel that the node never heard of does not keep its lost task: the second
// one ends it, and a resume, which nobody would be handed, is refused.
func TestCancelOfATaskThatIsLostMeanwhile(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
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
	var told bool
	for _, m := range e.messages() {
		told = told || m.Event != nil && *m.Event == *backEvent(c, f, "drain")
	}
	require.True(t, told, "its parked operation hears of it")
	_, err = e.CancelTask(ctx, row.TaskID, "again", operator)
	requireKind(t, err, schema.KindTaskStatus, "task_over")
}
