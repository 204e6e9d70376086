package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// batches records the sizes of the batches that a batcher flushes.
type batches struct {
	*batcher
	mu    sync.Mutex
	sizes []int
	err   error
	takes time.Duration
}

func newBatches() *batches {
	r := &batches{batcher: &batcher{}}
	r.flush = func(ctx context.Context, items []*identityLookup) error {
		r.mu.Lock()
		r.sizes = append(r.sizes, len(items))
		r.mu.Unlock()
		<-time.After(r.takes)
		return errors.Join(r.err, ctx.Err())
	}
	return r
}

func (b *batches) doOne(ctx context.Context) error { return b.Do(ctx, &identityLookup{}) }

// doAll adds n items at once and requires that all succeed.
func (b *batches) doAll(t *testing.T, n int) {
	t.Helper()
	var group sync.WaitGroup
	for range n {
		group.Go(func() { require.NoError(t, b.doOne(t.Context())) })
	}
	group.Wait()
}

// occupy starts a flush that takes d and returns a function that waits for it.
func (b *batches) occupy(t *testing.T, d time.Duration) (wait func()) {
	t.Helper()
	var group sync.WaitGroup
	b.takes = d
	group.Go(func() { require.ErrorIs(t, b.doOne(t.Context()), b.err) })
	synctest.Wait()
	b.takes = 0
	return group.Wait
}

func TestBatcherFlushesFullBatchAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		wait := b.occupy(t, time.Hour)
		start := time.Now()
		b.doAll(t, maxLookups)
		require.Equal(t, start, time.Now())
		require.Equal(t, []int{1, maxLookups}, b.sizes)
		wait()
	})
}

// A batcher flushes at once when idle, collects while a flush runs, and waits for a
// slow flush no longer than maxWait.
func TestBatcherCollectsDuringFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		b.takes = 5 * time.Millisecond
		start := time.Now()
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() { require.NoError(t, b.doOne(t.Context())) })
			synctest.Wait()
		}
		group.Wait()
		require.Equal(t, []int{1, 7}, b.sizes)
		require.Equal(t, start.Add(2*b.takes), time.Now())
		b.doAll(t, 1)
		require.Equal(t, start.Add(3*b.takes), time.Now(), "no flush is running: no wait")

		wait := b.occupy(t, time.Hour)
		start = time.Now()
		b.doAll(t, 1)
		require.Equal(t, start.Add(lookupMaxWait), time.Now())
		wait()
	})
}

// A canceled caller does not fail the others, nor does a leader whose deadline passes.
func TestBatcherSurvivesCanceledCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		wait := b.occupy(t, time.Millisecond)
		leading, leave := context.WithTimeout(t.Context(), time.Nanosecond)
		following, follow := context.WithCancel(t.Context())
		errs := make([]error, 3)
		var group sync.WaitGroup
		for i, ctx := range []context.Context{leading, following, t.Context()} {
			group.Go(func() { errs[i] = b.doOne(ctx) })
			synctest.Wait()
		}
		leave()
		follow()
		group.Wait()
		wait()
		require.Equal(t, []error{nil, context.Canceled, nil}, errs)
		require.Equal(t, []int{1, 3}, b.sizes)
	})
}

func TestBatcherFailsWholeBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		b.err = errors.New("unavailable")
		wait := b.occupy(t, time.Millisecond)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { require.ErrorIs(t, b.doOne(t.Context()), b.err) })
		}
		group.Wait()
		wait()
		require.Equal(t, []int{1, 3}, b.sizes)
	})
}
