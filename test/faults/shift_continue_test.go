package faults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
)

// TestContinuedRun: an operation is marked as abandoned although its run is open and waits
// for Vault. The run enqueues no task, and continues once the operation is marked as running.
func TestContinuedRun(t *testing.T) {
	t.Parallel()
	s := newShift(1)
	begin := s.start.Add(2 * storm) // the faults are over
	s.clock = func() time.Time { return begin }
	s.Change(s.nodeID, func(n *storetest.Node) { n.State = lifecycle.NodeActive })
	s.outages[theVault] = []outage{{begin.Add(-time.Second), begin.Add(10 * time.Second)}}
	cordoned := func() bool {
		_, ok := s.Task(lifecycle.TaskID(s.op.in.OperationID, string(task.WorkloadCordon)))
		return ok
	}
	waited := false
	s.events = []*event{
		{at: begin.Add(5 * time.Second), do: func() { s.Abandon(s.op.in.OperationID) }},
		{at: begin.Add(25 * time.Second), do: func() {
			waited = !cordoned()
			s.Continue(s.op.in.OperationID)
		}},
	}
	require.NoError(t, s.operate(lifecycle.ActionDrain, lifecycle.Options{}))
	require.True(t, waited, "the abandoned operation enqueued a task")
	require.Equal(t, lifecycle.NodeDrained, s.Node(s.nodeID).State)
	require.Zero(t, s.hits["recommended option followed"], "no one decided")
}
