package agent

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func quickTiming() timing {
	return timing{
		pollTimeout: 2 * time.Second, pollMin: time.Millisecond, pollMax: 20 * time.Millisecond,
		refusedMin: time.Millisecond, refusedMax: 20 * time.Millisecond,
		renewMin: time.Millisecond, renewMax: 20 * time.Millisecond,
		lockedMin: time.Millisecond, lockedMax: 20 * time.Millisecond, rest: time.Second,
		resultMin: time.Millisecond, resultMax: 20 * time.Millisecond,
		progress: 10 * time.Millisecond, heartbeat: time.Second,
	}
}

// running is an agent under test.
type running struct {
	*Agent
	log  *logBuffer
	done chan struct{}
	err  error
	end  context.CancelFunc
}

// newAgent makes an agent with quick timing that is not started.
func newAgent(tb testing.TB, c Config, o Deps) (*Agent, *logBuffer) {
	tb.Helper()
	buf := &logBuffer{}
	o.Log = slog.New(slog.NewJSONHandler(buf, nil))
	a, err := New(c, o)
	require.NoError(tb, err)
	a.timing = quickTiming()
	a.tasks.timing = a.timing
	a.trust.wait = backoff{min: a.timing.refusedMin, max: a.timing.refusedMax}
	return a, buf
}

// start runs an agent until the test ends.
func start(tb testing.TB, c Config, o Deps) *running {
	tb.Helper()
	a, buf := newAgent(tb, c, o)
	return launch(tb, a, buf)
}

func launch(tb testing.TB, a *Agent, buf *logBuffer) *running {
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

// ends waits until the agent stops by itself.
func (r *running) ends(tb testing.TB) {
	tb.Helper()
	select {
	case <-r.done:
	case <-time.After(20 * time.Second):
		tb.Fatal("the agent goes on")
	}
}

// eventually polls a condition that has no signal to wait for.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	require.Eventually(tb, ok, 20*time.Second, 2*time.Millisecond, what)
}
