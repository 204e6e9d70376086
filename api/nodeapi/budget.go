package nodeapi

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"
)

// Defaults of the limits.
const (
	// DefaultIssueRate is how many certificates a second one process has Vault
	// sign. By BenchmarkEnrollAgainstBareVault one Vault signs 500 to 1000 a second
	// on two busy cores, and 120 to 230 where Postgres and the API share them:
	// 50 is below half of the least. It lets 10,000 nodes come back within 200 s
	// and is far above the 0.1 a second that as many need on an ordinary day.
	DefaultIssueRate = 50
	// DefaultNodeRate is how many identities a second one node may ask for at
	// length; nodeBurst at once.
	DefaultNodeRate = 1
	nodeBurst       = 30
	// remoteSeconds is the burst of one remote address, in seconds of its rate.
	remoteSeconds = 4
	// minBurst keeps a share of a small budget for each priority.
	minBurst = 4
	// maxRetryAfter bounds what a caller is told to wait.
	maxRetryAfter = 5 * time.Minute
	// cells bounds the memory of a limiter. Keys share cells; a cell holds a few
	// of a large fleet.
	cells = 8192
)

// priority orders issuances when more is asked for than the budget gives.
type priority int

const (
	// priorityRecovery is a node that does no work until it is answered.
	priorityRecovery priority = iota
	// priorityUrgent is a renewal with less than a quarter of its certificate's
	// life left.
	priorityUrgent
	priorityOther
)

// String names the priority in metrics.
func (p priority) String() string { return Priorities()[p] }

// Priorities names the issuance budget's classes, most urgent first.
func Priorities() []string { return []string{"recovery", "urgent", "other"} }

// share is the part of the burst that a priority may use. The rest is kept for
// more urgent ones.
func (p priority) share() float64 { return 1 - 0.25*float64(p) }

// bucket is a token bucket that remembers how many it turned away, so that it
// can tell them to come back over the time that serving them takes. The zero
// bucket is full.
type bucket struct {
	used, owed float64
	at         time.Time
}

// take uses one token, or says how long to wait: a time of the server's
// choosing, so that those turned away at once do not return at once.
func (b *bucket) take(now time.Time, rate, most float64) (wait time.Duration, ok bool) {
	if past := now.Sub(b.at).Seconds() * rate; past > 0 {
		b.used, b.owed, b.at = max(0, b.used-past), max(0, b.owed-past), now
	}
	if b.used+1 <= most {
		b.used++
		return 0, true
	}
	b.owed++
	seconds := (b.used+1-most)/rate + rand.Float64()*b.owed/rate //nolint:gosec // spreads a herd; nothing depends on its secrecy
	return min(max(time.Second, time.Duration(seconds*float64(time.Second))), maxRetryAfter), false
}

// budget is the process's share of what Vault may sign.
type budget struct {
	rate    float64
	metrics Metrics

	mu     sync.Mutex
	bucket bucket
}

func newBudget(rate float64, m Metrics) *budget { return &budget{rate: rate, metrics: m} }

func (b *budget) burst() float64 { return max(minBurst, b.rate) }

// take asks for one issuance.
func (b *budget) take(p priority) (wait time.Duration, ok bool) {
	b.mu.Lock()
	wait, ok = b.bucket.take(time.Now(), b.rate, b.burst()*p.share())
	left := b.burst() - b.bucket.used
	b.mu.Unlock()
	b.metrics.Budget(p.String(), ok, left)
	return wait, ok
}

// limiter bounds how often each key asks, in a fixed amount of memory: keys are
// hashed to cells with a seed that no caller knows, and those that share a cell
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

// take counts one request of the key.
func (l *limiter) take(key string) (wait time.Duration, ok bool) {
	i := maphash.String(l.seed, key) % cells
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cells[i].take(time.Now(), l.rate, l.burst)
}
