package lifecycle_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	node := schema.NewID()
	require.True(t, schema.IsID(node))
	require.False(t, schema.IsID("gpu-17"))
	require.False(t, schema.IsID("{"+node[:36-2]+"}"))

	id, ok := lifecycle.NodeIDOfWorkflow(lifecycle.NodeWorkflowID(node))
	require.True(t, ok)
	require.Equal(t, node, id)
	id, ok = lifecycle.NodeIDOfWorkflow(lifecycle.ReissueWorkflowID(node))
	require.True(t, ok)
	require.Equal(t, node, id)
	_, ok = lifecycle.NodeIDOfWorkflow(lifecycle.FleetWorkflowID("reissue"))
	require.False(t, ok)
}

func TestDerivedIDs(t *testing.T) {
	t.Parallel()
	same := lifecycle.OperationID("n", lifecycle.ActionDrain, "key")
	require.Equal(t, same, lifecycle.OperationID("n", lifecycle.ActionDrain, "key"))
	require.NotEqual(t, same, lifecycle.OperationID("n", lifecycle.ActionRetire, "key"))
	require.NotEqual(t, same, lifecycle.OperationID("m", lifecycle.ActionDrain, "key"))
	fresh := lifecycle.OperationID("n", lifecycle.ActionDrain, "")
	require.NotEqual(t, fresh, lifecycle.OperationID("n", lifecycle.ActionDrain, ""))
	require.NotEqual(t, lifecycle.TaskID("o", "p"), lifecycle.ResourceID("o", "p"))
	require.NotEqual(t, lifecycle.TaskID("ab", "c"), lifecycle.TaskID("a", "bc"))
}
