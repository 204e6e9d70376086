package cli

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no read after the change")
	}
	require.Equal(t, lifecycle.OperationCompleted, (<-done).Operation.Status)
}
