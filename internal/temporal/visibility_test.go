package temporal

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// startParked starts a run that is parked, of which no worker has seen anything.
func startParked(t *testing.T, c *Client, host string, s lifecycle.Stuck, memo map[string]any) error {
	t.Helper()
	_, err := c.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		TaskQueue: lifecycle.TaskQueue, ID: "node:" + host, Memo: memo, TypedSearchAttributes: sdk.NewSearchAttributes(
			sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrHost).ValueSet(host),
			sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(s.Phase),
			sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(s.WaitingOn)),
			sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrStuckReason).ValueSet(s.Reason),
			sdk.NewSearchAttributeKeyTime(lifecycle.AttrStuckSince).ValueSet(s.Since))}, "Drain")
	return err
}

// parkedOnceListed waits until n operations are listed.
func parkedOnceListed(t *testing.T, c *Client, n int) (parked []lifecycle.OperationStatus) {
	t.Helper()
	harness.Eventually(t, "all are listed", func() bool {
		ops, complete, err := c.Operations.Parked(t.Context())
		parked = ops
		return err == nil && complete && len(ops) == n
	})
	return parked
}

// TestParkedNeedsNoWorker lists parked runs that no worker has seen: with the whole
// object from the memo if the memo is of the same park.
func TestParkedNeedsNoWorker(t *testing.T) {
	c := connect(t)
	since := time.Now().UTC().Truncate(time.Second)
	silent := lifecycle.Stuck{Phase: lifecycle.PhaseCordon, WaitingOn: lifecycle.AttentionAgent, Reason: "agent_silent", Since: since}
	full := silent
	full.Since = since.Add(-time.Minute)
	full.Message, full.Cause, full.Next = "the agent did not respond", "it is down", "gpuaas op retry gpu-1 --reason TEXT"
	full.Options = []lifecycle.Option{{Decision: lifecycle.DecisionRetry, Command: full.Next, Does: "Cordon the node again", Harm: lifecycle.HarmNone}}
	earlier := full
	earlier.Phase = lifecycle.PhaseDrain
	require.NoError(t, startParked(t, c, "gpu-2", silent, map[string]any{lifecycle.MemoStuck: earlier}))
	require.NoError(t, startParked(t, c, "gpu-1", full, map[string]any{lifecycle.MemoStuck: full}))
	parked := parkedOnceListed(t, c, 2)
	require.Equal(t, []string{"gpu-1", "gpu-2"}, []string{parked[0].Node.Host, parked[1].Node.Host}, "oldest first")
	require.Equal(t, full, *parked[0].Operation.Stuck)
	silent.Next = "gpuaas op show gpu-2"
	require.Equal(t, silent, *parked[1].Operation.Stuck)
	require.Equal(t, lifecycle.ActionDrain, parked[0].Operation.Action)
	require.Equal(t, lifecycle.OperationParked, parked[0].Operation.Status)
}

// TestParkedListsOverdue lists a run whose phase's deadline passed and that did not park.
func TestParkedListsOverdue(t *testing.T) {
	c := connect(t)
	deadline := time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
	for host, at := range map[string]time.Time{"gpu-1": deadline, "gpu-2": deadline.Add(2 * time.Hour)} {
		_, err := c.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
			TaskQueue: lifecycle.TaskQueue, ID: "node:" + host, TypedSearchAttributes: sdk.NewSearchAttributes(
				sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrHost).ValueSet(host),
				sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(lifecycle.AttentionNone)),
				sdk.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt).ValueSet(at))}, "Drain")
		require.NoError(t, err)
	}
	op := parkedOnceListed(t, c, 1)[0]
	require.Equal(t, "gpu-1", op.Node.Host)
	require.Equal(t, lifecycle.OperationRunning, op.Operation.Status)
	require.Equal(t, []any{"overdue", deadline}, []any{op.Operation.Stuck.Reason, op.Operation.Stuck.Since})
}

// TestParkedReadsAllPages: Temporal lists the newest run first, and the oldest park is
// of the run that started first, on the last page.
func TestParkedReadsAllPages(t *testing.T) {
	const page = 10
	c := connect(t)
	now := time.Now().UTC().Truncate(time.Second)
	at := func(i int) lifecycle.Stuck {
		return lifecycle.Stuck{WaitingOn: lifecycle.AttentionAgent, Reason: "agent_silent", Since: now.Add(time.Duration(i) * time.Second)}
	}
	require.NoError(t, startParked(t, c, "oldest", at(-1), nil))
	var group errgroup.Group
	group.SetLimit(16)
	for i := range 2 * page {
		group.Go(func() error { return startParked(t, c, fmt.Sprintf("gpu-%d", i), at(i), nil) })
	}
	require.NoError(t, group.Wait())
	var parked []lifecycle.OperationStatus
	harness.Eventually(t, "all are listed", func() bool {
		ops, complete, err := listParked(t.Context(), c.Operations, page)
		parked = ops
		return err == nil && complete && len(ops) == 2*page+1
	})
	require.Equal(t, "oldest", parked[0].Node.Host)
	require.True(t, slices.IsSortedFunc(parked, func(a, b lifecycle.OperationStatus) int {
		return a.Operation.Stuck.Since.Compare(b.Operation.Stuck.Since)
	}))
}
