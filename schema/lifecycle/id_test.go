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

	for _, host := range []string{"gpu-17", "gpu-17.example.org", "2001:db8::17"} {
		require.Equal(t, "node:"+host+":"+node, lifecycle.NodeWorkflowID(host, node))
		require.Equal(t, "node:"+host+":"+node+":reissue", lifecycle.ReissueWorkflowID(host, node))
	}
}

// TestCheckWorkflowID holds that only the node's own workflow ID may run an
// action: any other ID would escape the lock.
func TestCheckWorkflowID(t *testing.T) {
	t.Parallel()
	const host = "gpu-17"
	node := schema.NewID()
	for _, p := range lifecycle.Operations() {
		want := lifecycle.NodeWorkflowID(host, node)
		if !p.Holds {
			want = lifecycle.ReissueWorkflowID(host, node)
		}
		require.NoError(t, lifecycle.CheckWorkflowID(p.Action, host, node, want), p.Action)
		for _, foreign := range []string{"evil-2", "", want + ":x", lifecycle.NodeWorkflowID("gpu-18", node),
			lifecycle.NodeWorkflowID(host, schema.NewID()), lifecycle.ReissueWorkflowID(host, schema.NewID())} {
			err := lifecycle.CheckWorkflowID(p.Action, host, node, foreign)
			require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "foreign_workflow_id"}, "%s as %q", p.Action, foreign)
		}
	}
}

func TestDerivedIDs(t *testing.T) {
	t.Parallel()
	same := lifecycle.OperationID("n", lifecycle.ActionDrain, "ada", "key")
	require.Equal(t, same, lifecycle.OperationID("n", lifecycle.ActionDrain, "ada", "key"))
	require.NotEqual(t, same, lifecycle.OperationID("n", lifecycle.ActionRetire, "ada", "key"))
	require.NotEqual(t, same, lifecycle.OperationID("m", lifecycle.ActionDrain, "ada", "key"))
	require.NotEqual(t, same, lifecycle.OperationID("n", lifecycle.ActionDrain, "olga", "key"))
	fresh := lifecycle.OperationID("n", lifecycle.ActionDrain, "ada", "")
	require.NotEqual(t, fresh, lifecycle.OperationID("n", lifecycle.ActionDrain, "ada", ""))
	require.NotEqual(t, lifecycle.TaskID("o", "p"), lifecycle.ResourceID("o", "p"))
	require.NotEqual(t, lifecycle.TaskID("ab", "c"), lifecycle.TaskID("a", "bc"))
}
