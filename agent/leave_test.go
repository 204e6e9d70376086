package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// leaving is a driver with a record of the node in another system, which stays.
type leaving struct{ workload.Unmanaged }

// Leave implements workload.Leaver.
func (leaving) Leave(context.Context) error {
	return errors.New("the record stays; type: kubectl delete node gpu-1")
}

// TestLeaveReported: a record that the driver could not delete does not keep the node from being
// removed, and the output of the task says what to type.
func TestLeaveReported(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	a := start(t, c, Deps{Workloads: leaving{}})
	p := f.Payload(task.WipeIdentity, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	a.ends(t)
	require.NoError(t, a.err)
	r := f.Result(p.TaskID)
	require.Equal(t, task.Succeeded, r.Status)
	require.Contains(t, r.OutputTail, "type: kubectl delete node gpu-1")
	require.NoFileExists(t, c.KeyPath)
}
