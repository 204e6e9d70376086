package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func quickTiming() timing {
	quick := wait.Range{Min: time.Millisecond, Max: 20 * time.Millisecond}
	return timing{
		poll: quick, rest: time.Second, pause: 20 * time.Millisecond,
		identity: identity.Timing{PollTimeout: 2 * time.Second, Retry: quick, Refused: quick, Renewal: quick, Locked: quick, Removed: quick},
		task:     runner.Timing{Report: quick, Progress: 10 * time.Millisecond},
	}
}

// slowProgress is quickTiming with no progress call that is not asked for.
func slowProgress() *timing {
	t := quickTiming()
	t.task.Progress = time.Hour
	return &t
}

// running is an agent under test.
type running struct {
	*Agent
	log  *agenttest.LogBuffer
	done chan struct{}
	err  error
	end  context.CancelFunc
}

// newAgent makes an agent with quick timing that is not started.
func newAgent(tb testing.TB, c Config, o Deps) (*Agent, *agenttest.LogBuffer) {
	tb.Helper()
	buf := &agenttest.LogBuffer{}
	o.Log = slog.New(slog.NewJSONHandler(buf, nil))
	if o.timing == nil {
		o.timing = new(quickTiming())
	}
	a, err := New(c, o)
	require.NoError(tb, err)
	return a, buf
}

// start runs an agent until the test ends.
func start(tb testing.TB, c Config, o Deps) *running {
	tb.Helper()
	a, buf := newAgent(tb, c, o)
	return launch(tb, a, buf)
}

func launch(tb testing.TB, a *Agent, buf *agenttest.LogBuffer) *running {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	r := &running{Agent: a, log: buf, done: make(chan struct{}), end: cancel}
	go func() {
		defer close(r.done)
		defer a.Close()
		r.err = a.Run(ctx)
	}()
	tb.Cleanup(func() {
		r.halt()
		if tb.Failed() {
			tb.Log(buf.String())
		}
	})
	return r
}

// halt stops the agent and waits for it.
func (r *running) halt() {
	r.end()
	<-r.done
}

// ends waits until the agent stops.
func (r *running) ends(tb testing.TB) {
	tb.Helper()
	select {
	case <-r.done:
	case <-time.After(2 * time.Minute):
		tb.Fatal("the agent still runs")
	}
}

// hookDisk is the operating system's disk with another way to create files.
type hookDisk struct {
	disk.OS
	create func(path string) (disk.File, error)
}

func (d hookDisk) Create(path string) (disk.File, error) { return d.create(path) }

// eventually polls a condition that has no signal to wait for.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	require.Eventually(tb, ok, 2*time.Minute, 2*time.Millisecond, what)
}
