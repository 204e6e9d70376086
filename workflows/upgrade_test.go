package workflows

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
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

// While a release makes no successful poll, the operation says that, and what follows. When the
// agent before it reports, the operation says what it reports.
func TestUpgradeOfASilentRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	tries := 0
	w.on[task.AgentUpgrade] = func(activities.TaskSpec) (task.Result, error) {
		if tries++; tries == 1 {
			return task.Result{}, lost()
		}
		return task.Result{Status: task.Failed, Code: schema.KindTaskFailed, Message: "upgrade_rolled_back: v2.0.0: no successful poll within 5m0s"}, nil
	}
	b := setup(t, lifecycle.ActionUpgradeAgent, w)
	b.in.Options.AgentVersion = "v2.0.0"
	b.env.RegisterDelayedCallback(func() {
		stuck := b.status().Operation.Stuck
		require.Equal(t, lifecycle.ReasonTaskLost, stuck.Reason)
		require.Equal(t, "the agent received release v2.0.0 and has not reported since; the release may be on trial", stuck.Message)
		require.Contains(t, stuck.Cause, "the agent before the release runs again within 15m")
		require.Equal(t, lifecycle.AttentionAgent, stuck.WaitingOn)
	}, time.Minute)
	b.returnTask(6*time.Minute, "op-1", "agent.upgrade")
	b.env.RegisterDelayedCallback(func() {
		stuck := b.status().Operation.Stuck
		require.Equal(t, lifecycle.ReasonUpgradeRolledBack, stuck.Reason)
		require.Contains(t, stuck.Message, "v2.0.0: no successful poll within 5m0s")
		b.decide(lifecycle.DecisionCancel, "the release does not work")
	}, 7*time.Minute)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
}

// TestCanceledUpgrade: the cancel of an upgrade ends the operation. The node may run the release by
// then, and nothing returns it to the agent before, so the operation does not say that it was rolled back.
func TestCanceledUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.open[task.AgentUpgrade] = true
	b := setup(t, lifecycle.ActionUpgradeAgent, w)
	b.in.Options.AgentVersion = "v2.0.0"
	b.at(time.Minute, func() { b.decide(lifecycle.DecisionCancel, "the wrong release") })
	o := b.run().Operation
	require.Equal(t, lifecycle.OperationCanceled, o.Status)
	require.Equal(t, "ended; the node runs v2.0.0 if its agent had already started it: gpuaas node show gpu-17", o.Outcome)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
}
