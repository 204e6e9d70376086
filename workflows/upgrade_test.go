package workflows

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// The node receives the signed document of the release. The operation shows the version only.
func TestUpgradeShowsItsVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	var sent task.UpgradeParams
	w.on[task.AgentUpgrade] = func(spec activities.TaskSpec) (task.Result, error) {
		require.NoError(t, json.Unmarshal(spec.Params, &sent))
		return succeeded(task.UpgradeResult{Version: "v2.0.0"}), nil
	}
	b := setup(t, lifecycle.ActionUpgradeAgent, w)
	b.in.Options = lifecycle.Options{AgentVersion: "v2.0.0", Downgrade: true, Release: "signed"}
	shown := b.run().Operation
	require.Equal(t, lifecycle.OperationCompleted, shown.Status)
	require.Equal(t, task.UpgradeParams{Release: "signed", Downgrade: true}, sent)
	require.Equal(t, lifecycle.Options{AgentVersion: "v2.0.0", Downgrade: true}, shown.Options)
	require.Equal(t, shown.Options, b.answer.Options)
}
