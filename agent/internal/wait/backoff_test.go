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
		d := b.Next()
		if d < want/2 || d > want {
			t.Fatalf("failure %d: %s is not between half and all of %s", i, d, want)
		}
		want = min(2*want, b.Max)
	}
	b.Reset()
	require.LessOrEqual(t, b.Next(), b.Min)
}

func TestBackoffWithin(t *testing.T) {
	t.Parallel()
	b := Backoff{Range: Range{time.Second, time.Minute}, Jitter: func(most time.Duration) time.Duration { return most }}
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		require.Equal(t, want, b.Next())
	}
	require.Equal(t, 3*time.Second, b.NextWithin(3*time.Second))
	require.Equal(t, time.Second, b.NextWithin(0))
}

func TestBackoffWithEqualBounds(t *testing.T) {
	t.Parallel()
	b := Backoff{Range: Range{time.Second, time.Second}}
	for range 10 {
		require.LessOrEqual(t, b.Next(), time.Second)
	}
}

func TestSleep(t *testing.T) {
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
