package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// What proves a result stays beside it, byte for byte, and the audit names the
// certificate; that of a repeat is not taken over, nor is any kept of a task that
// came without.
func TestResultProofIsKept(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	f := e.claim(c.NodeID, lifecycle.ActionProvision).Fence
	row := e.dispatch(f, "facts", task.FactsCollect)
	plain := e.dispatch(f, "probe", task.NodeProbe)
	for range 2 {
		e.take(c, time.Minute)
	}
	proof := trust.ResultProof{Serial: "0a1b", Key: []byte{0x30, 0}, Body: []byte("{ \"spaced\":\xff1}"), Signature: []byte{1, 2, 3}}
	result := succeeded(1, inventory.Facts{CPUs: 2})
	_, err := e.Store.Tasks.Result(ctx, c, row.TaskID, nodeapi.ReceivedResult{Result: result, Proof: &proof})
	require.NoError(t, err)
	events := e.chain(c.NodeID)
	require.Equal(t, map[string]string{"type": "facts.collect", "serial": "0a1b"}, events[len(events)-1].Detail)

	again := nodeapi.ReceivedResult{Result: result,
		Proof: &trust.ResultProof{Serial: "0a1c", Key: []byte{1}, Body: []byte{2}, Signature: []byte{3}}}
	_, err = e.Store.Tasks.Result(ctx, c, row.TaskID, again)
	require.NoError(t, err)
	view, err := e.Task(ctx, row.TaskID)
	require.NoError(t, err)
	require.Equal(t, &proof, view.ResultProof)

	_, err = e.Result(ctx, c, plain.TaskID, succeeded(1, inventory.ProbeReport{}))
	require.NoError(t, err)
	view, err = e.Task(ctx, plain.TaskID)
	require.NoError(t, err)
	require.NotNil(t, view.Result)
	require.Nil(t, view.ResultProof)
	for _, v := range e.tasks(c.NodeID, false) {
		require.Nil(t, v.ResultProof)
	}
}
