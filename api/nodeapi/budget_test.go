package nodeapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Requests rejected together retry over the time that serving them takes, and are
// served then.
func TestRetriesAreSpread(t *testing.T) {
	const rate, burst, herd = 50.0, 50.0, 1000
	b := newBucket(rate, burst)
	now := time.Unix(1e9, 0)
	at := map[time.Time]int{now: herd}
	served, tries, longest := 0, 0, time.Duration(0)
	for served < herd {
		n := at[now]
		delete(at, now)
		for range n {
			tries++
			wait, ok := b.take(now, 0)
			if ok {
				served++
				longest = max(longest, now.Sub(time.Unix(1e9, 0)))
				continue
			}
			require.GreaterOrEqual(t, wait, time.Second)
			require.LessOrEqual(t, wait, maxRetryAfter)
			at[now.Add(wait.Truncate(time.Second)+time.Second)]++
		}
		now = now.Add(time.Second)
		require.Less(t, now.Unix(), int64(1e9+600))
	}
	t.Logf("%d at once were served within %s at %.0f a second, in %d tries", herd, longest, rate, tries)
	assert.Less(t, longest, 3*time.Minute)
	assert.Less(t, tries, 10*herd)
}

func TestBucketRefills(t *testing.T) {
	b := newBucket(2, 4)
	now := time.Unix(1e9, 0)
	for range 4 {
		_, ok := b.take(now, 0)
		require.True(t, ok)
	}
	wait, ok := b.take(now, 0)
	assert.False(t, ok)
	assert.GreaterOrEqual(t, wait, time.Second)
	_, ok = b.take(now.Add(-time.Hour), 0)
	assert.False(t, ok, "a clock that goes back adds no token")
	_, ok = b.take(now.Add(500*time.Millisecond), 0)
	assert.True(t, ok)
}

func TestLimiterIsBounded(t *testing.T) {
	l := newLimiter(1e-6, 2, time.Now)
	busy := "busy"
	for i := range 100_000 {
		l.take(time.Duration(i).String())
		if i%limiterKeys == 0 {
			l.take(busy)
		}
	}
	assert.LessOrEqual(t, len(l.recent)+len(l.older), 2*limiterKeys)
	_, ok := l.take(busy)
	assert.False(t, ok, "a key that is in use is not forgotten")
}

// Less urgent requests leave a part of the burst to more urgent ones.
func TestBudgetReservesForUrgent(t *testing.T) {
	b := newBucket(1, 8)
	now := time.Unix(1e9, 0)
	granted := map[priority]int{}
	for _, p := range []priority{priorityOther, priorityUrgent, priorityRecovery} {
		for _, ok := b.take(now, p.reserved()); ok; _, ok = b.take(now, p.reserved()) {
			granted[p]++
		}
	}
	assert.Equal(t, map[priority]int{priorityOther: 4, priorityUrgent: 2, priorityRecovery: 2}, granted)
}

// Rejections without end do not delay the retries of later requests without end.
func TestRetriesAreBounded(t *testing.T) {
	b := newBucket(1, 1)
	now := time.Unix(1e9, 0)
	for range 10_000 {
		b.take(now, 0)
	}
	wait, ok := b.take(now.Add(2*maxRetryAfter), 0)
	assert.True(t, ok)
	assert.Zero(t, wait)
	wait, ok = b.take(now.Add(2*maxRetryAfter), 0)
	assert.False(t, ok)
	assert.LessOrEqual(t, wait, 2*time.Second)
}
