package e2e

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestConcurrentDrains: of two simultaneous drains one is accepted, and the rejection
// of the other names the first.
func TestConcurrentDrains(t *testing.T) {
	nodeHost, _ := enrolled(t, "race")
	startWorkload(t, nodeHost, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	results := make([]result, 2)
	var both sync.WaitGroup
	for i := range results {
		both.Go(func() { results[i] = run(t, "node", "drain", nodeHost, "--yes", "--no-wait", "-o", "json") })
	}
	both.Wait()
	won, lost := results[0], results[1]
	if won.code != 0 {
		won, lost = lost, won
	}
	require.Zero(t, won.code, "%s%s", won.stdout, won.stderr)
	require.Equal(t, schema.ExitRefused, lost.code, "%s%s", lost.stdout, lost.stderr)
	envelope := decode[schema.ErrorBody](t, lost)
	require.Equal(t, schema.KindOperationInProgress, envelope.Error.Code)
	first := decode[lifecycleStep](t, won).Operation
	require.Contains(t, envelope.Error.Message, first.OperationID)
	require.Contains(t, envelope.Error.Message, first.RunID)

	eventually(t, "the drain waits for the workload", func() bool { return inPhase(t, nodeHost, lifecycle.PhaseDrain) })
	requireNoReissue(t, nodeHost, lifecycle.NodeDraining)
	ok(t, "op", "cancel", nodeHost, "--reason", "test")
}

// TestIdempotencyKey: a repeated key returns the same operation, during and after it.
func TestIdempotencyKey(t *testing.T) {
	nodeHost, _ := enrolled(t, "key")
	drain := []string{"node", "drain", nodeHost, "--yes", "--idempotency-key", "ticket-1"}
	first := act(t, drain...)
	require.Equal(t, lifecycle.OperationCompleted, first.Operation.Status)
	again := act(t, drain...)
	require.Equal(t, first.Operation.OperationID, again.Operation.OperationID)
	require.Equal(t, first.Operation.RunID, again.Operation.RunID)
	require.Equal(t, lifecycle.OperationCompleted, again.Operation.Status)
}

// TestExitCodes verifies the exit codes that scripts use.
func TestExitCodes(t *testing.T) {
	nodeHost, id := enrolled(t, "exit")
	cases := map[string]struct {
		args []string
		code int
		kind schema.Kind
		says string
	}{
		"remove of an active node":    {[]string{"node", "remove", nodeHost, "--yes"}, schema.ExitRefused, schema.KindInvalidRequest, "retire"},
		"reactivate of an active one": {[]string{"node", "reactivate", id}, schema.ExitRefused, schema.KindInvalidRequest, "active"},
		"unknown host":                {[]string{"node", "drain", "no-such-host", "--yes"}, schema.ExitNotFound, schema.KindNotFound, "no-such-host"},
		"unknown id":                  {[]string{"node", "drain", schema.NewID(), "--yes"}, schema.ExitNotFound, schema.KindNotFound, ""},
		"unknown SKU":                 {[]string{"node", "register", host(t, "sku"), "--sku", "z9", "--region", "r"}, schema.ExitRefused, schema.KindInvalidRequest, "z9"},
		"Temporal down": {[]string{"node", "drain", id, "--yes", "--direct", "--address", "127.0.0.1:1"},
			schema.ExitUnreachable, schema.KindServiceUnavailable, "127.0.0.1:1"},
		"API down": {[]string{"node", "list", "--api-url", "http://127.0.0.1:1"},
			schema.ExitUnreachable, schema.KindServiceUnavailable, "127.0.0.1:1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := run(t, append(c.args, "-o", "json")...)
			require.Equal(t, c.code, r.code, "%s%s", r.stdout, r.stderr)
			envelope := decode[schema.ErrorBody](t, r)
			require.Equal(t, c.kind, envelope.Error.Code)
			require.Contains(t, envelope.Error.Message+envelope.Error.Next, c.says)
		})
	}
	for name, args := range map[string][]string{
		"unknown flag": {"node", "drain", nodeHost, "--explode"}, "unknown command": {"node", "explode"},
		"no argument": {"node", "drain"}, "no terminal and no --yes": {"node", "drain", nodeHost},
		"no reason": {"op", "force", nodeHost, "--yes"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, schema.ExitUsage, run(t, args...).code)
		})
	}
	require.Equal(t, lifecycle.NodeActive, show(t, nodeHost).State, "a rejected request changed the node")
}
