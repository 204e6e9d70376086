package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// steppedControl returns the states that a test sends, and the test's changes. Its
// channel of changes is coalesced, like that of the event stream.
type steppedControl struct {
	control
	reads  chan chan lifecycle.OperationStatus
	events chan struct{}
}

func (c steppedControl) status(ctx context.Context, _ lifecycle.Operation) (v wire.OperationView, err error) {
	answer := make(chan lifecycle.OperationStatus)
	select {
	case c.reads <- answer:
		return wire.OperationView{OperationStatus: <-answer}, nil
	case <-ctx.Done():
		return v, ctx.Err()
	}
}

func (c steppedControl) changes(context.Context, string) <-chan struct{} { return c.events }

// TestFollowChangeDuringRead: a change that arrives during a read leads to another read,
// because the first may have missed it.
func TestFollowChangeDuringRead(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.env.clock.after = func(time.Duration) <-chan time.Time { return nil } // only changes lead to reads
	c := steppedControl{reads: make(chan chan lifecycle.OperationStatus), events: make(chan struct{}, 1)}
	done := make(chan lifecycle.OperationStatus, 1)
	go func() {
		st, _ := h.env.follow(t.Context(), followRequest{target: target{host: "gpu-17"}, control: c, quiet: true,
			operation: operation(lifecycle.ActionDrain, lifecycle.OperationRunning)})
		done <- st
	}()
	first := <-c.reads
	c.events <- struct{}{}
	first <- drainAt(0, lifecycle.OperationRunning)
	select {
	case second := <-c.reads:
		second <- drainAt(3, lifecycle.OperationCompleted)
	case <-time.After(time.Minute):
		require.FailNow(t, "no read after the change")
	}
	require.Equal(t, lifecycle.OperationCompleted, (<-done).Operation.Status)
}

// TestWaitLastsAsLongAsThePhase: a wait without --timeout ends after the deadline of the current phase,
// which may be far beyond the default limits of the phases, and is renewed by the next one.
func TestWaitLastsAsLongAsThePhase(t *testing.T) {
	t.Parallel()
	h := creating(t, provisionAs("vm", running, nil))
	deadlines := []time.Duration{5 * time.Hour, 9 * time.Hour}
	h.clock.onWait = func(int) {
		h.api.mu.Lock()
		defer h.api.mu.Unlock()
		st := h.api.provisioned["vm"]
		if len(deadlines) > 0 && (st.Operation.DeadlineAt == nil || h.clock.waited() > st.Operation.DeadlineAt.Sub(start())-time.Hour) {
			st.Operation.DeadlineAt, deadlines = at(deadlines[0]), deadlines[1:]
			h.api.provisioned["vm"] = st
		}
	}
	require.Equal(t, schema.ExitPending, h.run(create("-o", "json")...))
	require.Equal(t, 9*time.Hour+waitGrace, h.clock.waited())
	require.Contains(t, h.out.String(), `"reason": "stopped waiting after 9h1m: the operation is still running"`)
}

// TestFollowRetriedCall: a wait writes once that a call of the operation fails and is retried.
func TestFollowRetriedCall(t *testing.T) {
	t.Parallel()
	h := setup(t)
	f := &followed{env: h.env, started: h.env.clock.now(), request: followRequest{target: target{host: "gpu-17"}, limit: time.Hour}}
	f.until, f.progress = f.started.Add(time.Hour), newProgress(h.env, f.request)
	for _, tries := range []string{"2 tries", "3 tries", ""} {
		v := wire.OperationView{OperationStatus: drainAt(0, lifecycle.OperationRunning)}
		if tries != "" {
			v.Faults = []wire.ControlPlaneFault{{Component: "activity", Reason: "provider_unavailable", Message: "MAAS does not respond after " + tries}}
		}
		done, err := f.take(v, nil)
		require.NoError(t, err)
		require.False(t, done)
	}
	require.Equal(t, 1, strings.Count(h.err.String(), "note: retrying: MAAS does not respond after 2 tries"))
	require.NotContains(t, h.err.String(), "3 tries")
	require.Zero(t, f.note, "it no longer fails")
}
