package wait

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
	b := Backoff{Range: Range{500 * time.Millisecond, wire.PollBackoffMax}}
	want := b.Min
	for i := range 1_000_000 {
		step := b.step(b.Max)
		if step != min(want, b.Max) {
			t.Fatalf("failure %d: %s, want %s", i, step, min(want, b.Max))
		}
		if want < b.Max {
			want *= 2
		}
		d := b.Next()
		if d < step/2 || d > step {
			t.Fatalf("failure %d: %s is not between half and all of %s", i, d, step)
		}
	}
	b.failures = 1 << 62
	require.Equal(t, b.Max, b.step(b.Max))
	b.Reset()
	require.Equal(t, b.Min, b.step(b.Max))
}

func TestBackoffWithEqualBounds(t *testing.T) {
	t.Parallel()
	b := Backoff{Range: Range{time.Second, time.Second}}
	for range 10 {
		require.LessOrEqual(t, b.Next(), time.Second)
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		require.NoError(t, Sleep(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(begin))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, time.Since(begin))
	})
}
