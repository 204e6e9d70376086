package nodeapi

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"
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

// share is the fraction of the burst that a priority may use. The rest is
// reserved for more urgent ones.
func (p priority) share() float64 { return 1 - 0.25*float64(p) }

// bucket is a token bucket that counts its rejections, so that it can spread
// their retries over the time that serving them takes. The zero bucket is full.
type bucket struct {
	used, owed float64
	at         time.Time
}

// take uses one token, or returns how long to wait. The wait is randomized, so
// that requests rejected together do not retry together.
func (b *bucket) take(now time.Time, rate, most float64) (wait time.Duration, ok bool) {
	if past := now.Sub(b.at).Seconds() * rate; past > 0 {
		b.used, b.owed, b.at = max(0, b.used-past), max(0, b.owed-past), now
	}
	if b.used+1 <= most {
		b.used++
		return 0, true
	}
	b.owed++
	seconds := (b.used+1-most)/rate + rand.Float64()*b.owed/rate //nolint:gosec // load spreading needs no secret
	return min(max(time.Second, time.Duration(seconds*float64(time.Second))), maxRetryAfter), false
}

// budget limits the signatures that this process requests from Vault.
type budget struct {
	rate    float64
	metrics Metrics

	mu     sync.Mutex
	bucket bucket
}

func newBudget(rate float64, m Metrics) *budget { return &budget{rate: rate, metrics: m} }

func (b *budget) burst() float64 { return max(minBurst, b.rate) }

// take requests one issuance.
func (b *budget) take(p priority) (wait time.Duration, ok bool) {
	b.mu.Lock()
	wait, ok = b.bucket.take(time.Now(), b.rate, b.burst()*p.share())
	left := b.burst() - b.bucket.used
	b.mu.Unlock()
	b.metrics.Budget(p.String(), ok, left)
	return wait, ok
}

// limiter limits the rate of each key in a fixed amount of memory: keys are
// hashed to cells with a seed that callers cannot predict, and keys of one cell
// share its rate.
type limiter struct {
	rate, burst float64
	seed        maphash.Seed

	mu    sync.Mutex
	cells []bucket
}

func newLimiter(rate, burst float64) *limiter {
	return &limiter{rate: rate, burst: burst, seed: maphash.MakeSeed(), cells: make([]bucket, cells)}
}

// take counts one request for the key.
func (l *limiter) take(key string) (wait time.Duration, ok bool) {
	i := maphash.String(l.seed, key) % cells
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cells[i].take(time.Now(), l.rate, l.burst)
}
