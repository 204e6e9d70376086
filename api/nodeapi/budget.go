package nodeapi

import (
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Defaults of the limits.
const (
	// DefaultIssueRate is how many certificates a second one process requests from
	// Vault. BenchmarkEnrollAgainstBareVault measures 500 to 1000 signatures a
	// second for Vault on two busy cores, and 120 to 230 if Postgres and the API
	// share them: 50 is less than half of the minimum. 10,000 nodes re-enroll
	// within 200 s at this rate; in normal operation they need 0.1 a second.
	DefaultIssueRate = 50
	// DefaultNodeRate is how many certificates a second one node may request on
	// average; nodeBurst is the burst in multiples of it.
	DefaultNodeRate = 1
	nodeBurst       = 30
	// remoteSeconds is the burst of a remote address in seconds of its rate.
	remoteSeconds = 4
	// minBurst keeps a share of a small budget for each priority.
	minBurst = 4
	// maxRetryAfter bounds the Retry-After of a rejection.
	maxRetryAfter = 5 * time.Minute
	// cells bounds the memory of a limiter. Keys share cells: a cell has a few
	// keys of a large fleet.
	cells = 8192
)

// priority orders issuances when requests exceed the budget.
type priority int

const (
	// priorityRecovery is for a node that cannot work until it has a certificate.
	priorityRecovery priority = iota
	// priorityUrgent is for a renewal with less than a quarter of the
	// certificate's life left.
	priorityUrgent
	priorityOther
)

// String names the priority in metrics.
func (p priority) String() string { return Priorities()[p] }

// Priorities returns the names of the priorities, most urgent first.
func Priorities() []string { return []string{"recovery", "urgent", "other"} }

// reserved is the fraction of the burst that is left for more urgent priorities.
func (p priority) reserved() float64 { return 0.25 * float64(p) }

// bucket is a token bucket that assigns each request it rejects a separate time to
// retry, so that requests rejected together do not return together.
type bucket struct{ tokens, retries *rate.Limiter }

func newBucket(perSecond, burst float64) *bucket {
	return &bucket{rate.NewLimiter(rate.Limit(perSecond), int(max(1, burst))), rate.NewLimiter(rate.Limit(perSecond), 1)}
}

// take uses one token and leaves the reserved fraction of the burst, or returns how
// long to wait.
func (b *bucket) take(now time.Time, reserved float64) (wait time.Duration, ok bool) {
	if b.tokens.TokensAt(now) >= 1+reserved*float64(b.tokens.Burst()) && b.tokens.AllowN(now, 1) {
		return 0, true
	}
	r := b.retries.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > maxRetryAfter {
		r.CancelAt(now) // the line of retries must not grow without end
	}
	return min(max(time.Second, wait), maxRetryAfter), false
}

// budget limits the signatures that this process requests from Vault.
type budget struct {
	*bucket
	now     func() time.Time
	metrics Metrics
}

func newBudget(perSecond float64, now func() time.Time, m Metrics) *budget {
	return &budget{newBucket(perSecond, max(minBurst, perSecond)), now, m}
}

// take requests one issuance.
func (b *budget) take(p priority) (wait time.Duration, ok bool) {
	now := b.now()
	wait, ok = b.bucket.take(now, p.reserved())
	b.metrics.Budget(p.String(), ok, b.tokens.TokensAt(now))
	return wait, ok
}

// limiter limits the rate of each key in a bounded amount of memory: keys are
// hashed to cells with a seed that callers cannot predict, and keys of one cell
// share its rate.
type limiter struct {
	rate, burst float64
	now         func() time.Time
	seed        maphash.Seed

	mu    sync.Mutex
	cells map[uint64]*bucket
}

func newLimiter(perSecond, burst float64, now func() time.Time) *limiter {
	return &limiter{rate: perSecond, burst: burst, now: now, seed: maphash.MakeSeed(), cells: map[uint64]*bucket{}}
}

// take counts one request for the key.
func (l *limiter) take(key string) (wait time.Duration, ok bool) {
	i := maphash.String(l.seed, key) % cells
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cells[i] == nil {
		l.cells[i] = newBucket(l.rate, l.burst)
	}
	return l.cells[i].take(l.now(), 0)
}
