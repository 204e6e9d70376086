package temporal

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/worker"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/test/harness"
)

// submitUnserved submits an operation that no worker serves, without waiting for the claim.
func submitUnserved(t *testing.T, c *Client, host string) lifecycle.OperationInput {
	t.Helper()
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: host, Action: lifecycle.ActionDrain, Actor: "ops", StartWithinSeconds: 600}
	plan, _ := lifecycle.PlanOf(in.Action, in.Options)
	_, err := c.sdk.ExecuteWorkflow(t.Context(), startOptions(in, plan), plan.Workflow, in)
	require.NoError(t, err)
	return in
}

// TestUnclaimed: an operation that Temporal accepted while no worker polls is described with its
// cause, its expiry and the command that cancels it, unless it is on record.
func TestUnclaimed(t *testing.T) {
	c := connect(t)
	in, known := submitUnserved(t, c, "gpu-1"), submitUnserved(t, c, "gpu-2")
	listed := 0
	harness.Eventually(t, "both runs are listed", func() bool {
		infos, err := c.list(t.Context(), waitingQuery(time.Now().Add(time.Minute)), maxWaiting)
		listed = len(infos)
		return err == nil && listed == 2
	})
	onRecord := func(context.Context, []string) ([]string, error) { return []string{known.OperationID}, nil }
	nodes, err := c.Requests.Unclaimed(t.Context(), onRecord)
	require.NoError(t, err)
	require.Empty(t, nodes, "they wait for less than a minute")

	nodes, err = c.Requests.unclaimedBefore(t.Context(), time.Now().Add(time.Minute), onRecord)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	n := nodes[0]
	require.Equal(t, []any{stuck.RowPending, in.NodeID, "gpu-1", in.OperationID, lifecycle.ActionDrain}, []any{n.Row, n.NodeID, n.Host, n.OperationID, n.Action})
	require.Equal(t, stuck.ReasonUnclaimed, n.Stuck.Reason)
	require.Equal(t, "no gpuaas-worker polls the task queue "+lifecycle.TaskQueue, n.Stuck.Cause)
	require.Contains(t, n.Stuck.Message, "no worker has claimed the node; it expires at ")
	require.Equal(t, "systemctl start gpuaas-worker", n.Stuck.Next)
	require.Equal(t, "gpuaas --direct op cancel gpu-1 --operation "+in.OperationID+" --reason TEXT", n.Stuck.Options[1].Command)

	startWorker(t, c, worker.Options{}, sleeps)
	harness.Eventually(t, "a worker polls, so the operation is not late yet", func() bool {
		nodes, err = c.Requests.unclaimedBefore(t.Context(), time.Now().Add(time.Minute), onRecord)
		return err == nil && len(nodes) == 0
	})
}
