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
	*batcher[heartbeat]
	mu    sync.Mutex
	sizes []int
	err   error
	takes time.Duration
}

func newBatches(b *batcher[heartbeat]) *batches {
	r := &batches{batcher: b}
	b.flush = func(ctx context.Context, items []*heartbeat) error {
		r.mu.Lock()
		r.sizes = append(r.sizes, len(items))
		r.mu.Unlock()
		<-time.After(r.takes)
		return errors.Join(r.err, ctx.Err())
	}
	return r
}

func (b *batches) doOne(ctx context.Context) error { return b.Do(ctx, &heartbeat{}) }

// doAll adds n items at once and requires that all succeed.
func (b *batches) doAll(t *testing.T, n int) {
	t.Helper()
	var group sync.WaitGroup
	for range n {
		group.Go(func() { require.NoError(t, b.doOne(t.Context())) })
	}
	group.Wait()
}

func TestBatcherCollectsHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches(newHeartbeats(nil))
		start := time.Now()
		b.doAll(t, 3)
		require.Equal(t, start.Add(heartbeatMinWait), time.Now(), "concurrent items share the minimal wait")
		var group sync.WaitGroup
		for i := range 10 {
			group.Go(func() {
				<-time.After(time.Duration(i) * 10 * time.Millisecond)
				require.NoError(t, b.doOne(t.Context()))
			})
		}
		group.Wait()
		require.Equal(t, start.Add(heartbeatMinWait+heartbeatMaxWait), time.Now())
		require.Equal(t, []int{3, 10}, b.sizes)
		<-time.After(heartbeatMaxWait)
		b.doAll(t, 1)
		require.Equal(t, start.Add(2*(heartbeatMinWait+heartbeatMaxWait)), time.Now())
	})
}

func TestBatcherFlushesFullBatchAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches(newHeartbeats(nil))
		start := time.Now()
		b.doAll(t, maxHeartbeats)
		require.Equal(t, start, time.Now())
		b.doAll(t, 1)
		require.Equal(t, []int{maxHeartbeats, 1}, b.sizes)
	})
}

// An eager batcher flushes at once when idle, collects while a flush runs, and
// waits for a slow flush no longer than maxWait.
func TestEagerBatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rules := newIdentityLookups(nil)
		b := newBatches(&batcher[heartbeat]{minWait: rules.minWait, maxWait: rules.maxWait, eager: rules.eager, maxSize: rules.maxSize})
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

		b.takes = time.Hour
		group.Go(func() { require.NoError(t, b.doOne(t.Context())) })
		synctest.Wait()
		start = time.Now()
		b.takes = 0
		b.doAll(t, 1)
		require.Equal(t, start.Add(lookupMaxWait), time.Now())
		group.Wait()
	})
}

// A canceled caller, the leader included, does not fail the others.
func TestBatcherSurvivesCanceledCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches(newHeartbeats(nil))
		leading, leave := context.WithCancel(t.Context())
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
		require.Equal(t, []error{nil, context.Canceled, nil}, errs)
		require.Equal(t, []int{3}, b.sizes)
	})
}

func TestBatcherFailsWholeBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatches(newHeartbeats(nil))
		b.err = errors.New("unavailable")
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { require.ErrorIs(t, b.doOne(t.Context()), b.err) })
		}
		group.Wait()
		require.Equal(t, []int{3}, b.sizes)
	})
}
