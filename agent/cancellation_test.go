package agent

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestCancellationTriggersProgress: a running task reports progress at once when a
// poll names it as canceled. Other tasks do not.
func TestCancellationTriggersProgress(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	asked := make(chan string, 16)
	started, end := make(chan string, 2), make(chan struct{})
	x := script{task.WorkloadDrain: held(started, nil), task.NodeProbe: held(started, end)}
	a, log := newAgent(t, configFor(f), Deps{Executors: x.executors(), timing: slowProgress()})
	launch(t, a, log)
	other, p := f.Payload(task.NodeProbe, 1, nil), f.Payload(task.WorkloadDrain, 2, nil)
	var canceled atomic.Bool
	f.Progress = func(taskID string, body task.Progress) (wire.ProgressResponse, error) {
		if body.Message != "starting" {
			asked <- taskID
		}
		return wire.ProgressResponse{Cancel: taskID == p.TaskID && canceled.Load()}, nil
	}
	f.Offers <- f.OfferOf(other, 1)
	<-started
	f.Offers <- f.OfferOf(p, 1)
	<-started
	require.Equal(t, other.TaskID, <-asked, "a new task triggers progress")
	canceled.Store(true)
	f.Cancellations <- agenttest.Cancellations{schema.NewID(), p.TaskID}
	require.Equal(t, p.TaskID, <-asked)
	require.Equal(t, task.Canceled, f.Result(p.TaskID).Status)
	close(end)
	require.Equal(t, task.Succeeded, f.Result(other.TaskID).Status)
	require.Empty(t, asked)
}

// TestPauseAfterRepeatedCancellation: if the server repeats a cancellation, the agent
// pauses before the next poll.
func TestPauseAfterRepeatedCancellation(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	started := make(chan string, 1)
	a := start(t, configFor(f), Deps{Executors: script{task.WorkloadDrain: held(started, nil)}.executors()})
	p := f.Payload(task.WorkloadDrain, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	<-started
	for range 5 {
		f.Cancellations <- agenttest.Cancellations{p.TaskID}
	}
	eventually(t, "four pauses", func() bool { return strings.Count(a.log.String(), "repeated after a pause") == 4 })
}
