package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestBackoffSaturates(t *testing.T) {
	t.Parallel()
	b := backoff{min: 500 * time.Millisecond, max: wire.PollBackoffMax}
	want := b.min
	for i := range 1_000_000 {
		step := b.step()
		if step != min(want, b.max) {
			t.Fatalf("failure %d: %s, want %s", i, step, min(want, b.max))
		}
		if want < b.max {
			want *= 2
		}
		d := b.next()
		if d < step/2 || d > step {
			t.Fatalf("failure %d: %s is not between half and all of %s", i, d, step)
		}
	}
	b.failures = 1 << 62
	require.Equal(t, b.max, b.step())
	b.reset()
	require.Equal(t, b.min, b.step())
}

func TestBackoffWithEqualBounds(t *testing.T) {
	t.Parallel()
	b := backoff{min: time.Second, max: time.Second}
	for range 10 {
		require.LessOrEqual(t, b.next(), time.Second)
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		require.NoError(t, pause(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(begin))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, pause(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, time.Since(begin))
	})
}

func TestRestartDelay(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2*time.Second, restartDelay(1))
	require.Equal(t, time.Minute, restartDelay(1<<62))
}
