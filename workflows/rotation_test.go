package workflows

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/test/harness"
)

// rotor is a rotation that waits for a decision at its third look and ends after it.
type rotor struct {
	looks   atomic.Int64
	decided atomic.Bool
}

func (r *rotor) advance(context.Context) (activities.RotationStatus, error) {
	look := r.looks.Add(1)
	s := activities.RotationStatus{Open: true, Again: true, Rotation: rotation.Begin(rotation.TaskKey, "task-dev.v1", 0)}
	switch {
	case look == 2:
		return s, activities.Failure(schema.NewError(schema.KindForbidden, "Vault denies it"), true)
	case r.decided.Load():
		return activities.RotationStatus{}, nil
	case look >= 3:
		s.Again, s.Blockers = false, []rotation.Blocker{rotation.BlockedApproval}
	}
	return s, nil
}

// TestRotationWorkflow: the workflow repeats a failed look, looks at once after a signal, and
// ends when no rotation is open. With -record it writes the replay fixtures.
func TestRotationWorkflow(t *testing.T) {
	c, err := temporal.Dial(temporal.Config{Address: server.Address(t), Namespace: "t-" + schema.NewID()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.Installation.Setup(t.Context()))
	turn := &rotor{}
	runs := worker.New(c.SDK(), lifecycle.TaskQueue, worker.Options{DisableRegistrationAliasing: true})
	for _, e := range Registry() {
		runs.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	trusts := worker.New(c.SDK(), lifecycle.TrustQueue, worker.Options{})
	trusts.RegisterActivityWithOptions(turn.advance, activity.RegisterOptions{Name: "AdvanceRotation"})
	trusts.RegisterActivityWithOptions(func(context.Context) (activities.Maintenance, error) {
		return activities.Maintenance{SetVersion: 2, Renewed: true}, nil
	}, activity.RegisterOptions{Name: "MaintainTrust"})
	for _, w := range []worker.Worker{runs, trusts} {
		require.NoError(t, w.Start())
		t.Cleanup(w.Stop)
	}
	r := rotation.Begin(rotation.TaskKey, "", 0)
	r.Actor, r.Reason = "alice", "quarterly"
	require.NoError(t, c.Rotations.Drive(t.Context(), r))
	looked := func(n int64) {
		harness.Eventually(t, fmt.Sprintf("look %d", n), func() bool { return turn.looks.Load() >= n })
	}
	looked(2)
	require.NoError(t, c.Rotations.Drive(t.Context(), r), "a second start is a signal")
	looked(3)
	turn.decided.Store(true)
	require.NoError(t, c.Rotations.Drive(t.Context(), r))
	ended := finish(t, c, lifecycle.RotationWorkflowID)
	renewal, err := c.SDK().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "fleet:maintain", TaskQueue: lifecycle.TaskQueue, StaticSummary: "Renew the verifier set"}, lifecycle.WorkflowTrust)
	require.NoError(t, err)
	require.NoError(t, renewal.Get(t.Context(), nil))
	for name, run := range map[string]lifecycle.Operation{"rotate-keys": ended, "maintain-trust": {WorkflowID: renewal.GetID(), RunID: renewal.GetRunID()}} {
		h := (&recorder{Client: c, t: t, op: run}).keep(name)
		require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, h))
	}
}

// finish waits for the end of a workflow's newest run.
func finish(t *testing.T, c *temporal.Client, workflowID string) lifecycle.Operation {
	t.Helper()
	run := c.SDK().GetWorkflow(t.Context(), workflowID, "")
	require.NoError(t, run.Get(t.Context(), nil))
	return lifecycle.Operation{WorkflowID: workflowID, RunID: run.GetRunID()}
}
