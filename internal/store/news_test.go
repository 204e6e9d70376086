package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// Of what a node holds, only what is not wanted any more is news.
func TestTaskNews(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	kept, cancelled := e.held(c, f, "kept", schema.TaskNodeProbe), e.held(c, f, "cancelled", schema.TaskWorkloadDrain)
	told := e.held(c, f, "told", schema.TaskWorkloadCordon)
	have := []string{told.TaskID, cancelled.TaskID, kept.TaskID, schema.NewID()}
	news := func(c schema.Caller, have []string) []string {
		ids, err := e.TaskNews(ctx, c, have)
		require.NoError(t, err)
		return ids
	}
	require.Empty(t, news(c, have))
	_, err := e.CancelTask(ctx, cancelled.TaskID, "wrong node", operator)
	require.NoError(t, err)
	require.NoError(t, e.Told(ctx, told.TaskID, schema.BeatAnswer{Cancel: true}))
	require.Equal(t, []string{cancelled.TaskID, told.TaskID}, news(c, have))
	require.Empty(t, news(c, have[2:]), "what the node does not hold is no news to it")
	other, _, _ := e.enroll()
	require.Empty(t, news(other, have), "another node's")

	require.NoError(t, e.Void(ctx, f))
	require.Equal(t, []string{kept.TaskID, cancelled.TaskID, told.TaskID}, news(c, have))
}
