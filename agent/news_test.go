package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A running task whose progress is far off asks at once when a poll says that
// there is news of it, and only that one.
func TestNewsIsAskedForAtOnce(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	asked := make(chan string, 16)
	started, end := make(chan string, 2), make(chan struct{})
	x := script{task.WorkloadDrain: held(started, nil), task.NodeProbe: held(started, end)}
	a, log := newAgent(t, f.config(), Deps{Executors: x.executors()})
	a.tasks.timing.progress = time.Hour
	launch(t, a, log)
	other, p := f.payload(task.NodeProbe, 1, nil), f.payload(task.WorkloadDrain, 2, nil)
	f.progress = func(taskID string, _ task.Progress) (wire.ProgressResponse, error) {
		asked <- taskID
		return wire.ProgressResponse{Cancel: taskID == p.TaskID}, nil
	}
	f.offers <- f.offerOf(other, 1)
	<-started
	f.offers <- f.offerOf(p, 1)
	<-started
	require.Equal(t, other.TaskID, <-asked, "the newer task made it ask")
	f.news <- news{schema.NewID(), p.TaskID}
	require.Equal(t, p.TaskID, <-asked)
	require.Equal(t, task.Canceled, f.result(p.TaskID).Status)
	close(end)
	require.Equal(t, task.Succeeded, f.result(other.TaskID).Status)
	require.Empty(t, asked)
}

// A server that repeats the same news is asked again after a pause only.
func TestRepeatedNewsIsPaused(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	started := make(chan string, 1)
	a := start(t, f.config(), Deps{Executors: script{task.WorkloadDrain: held(started, nil)}.executors()})
	p := f.payload(task.WorkloadDrain, 1, nil)
	f.offers <- f.offerOf(p, 1)
	<-started
	for range 5 {
		f.news <- news{p.TaskID}
	}
	eventually(t, "four pauses", func() bool { return strings.Count(a.log.String(), "repeated after a pause") == 4 })
}
