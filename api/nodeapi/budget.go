package nodeapi

import (
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
	// DefaultNodeRate is how often a second one node may enroll on average; nodeBurst is the
	// burst in multiples of it.
	DefaultNodeRate = 1
	nodeBurst       = 30
	// DefaultRenewalRate is how often a second one node may renew or recover on average;
	// renewalBurst is the burst in multiples of it. A node needs one renewal in 36 h, and
	// retries a failed one after 30 s or more.
	DefaultRenewalRate = 1.0 / 60
	renewalBurst       = 5 * 60
	// remoteSeconds is the burst of a remote address in seconds of its rate.
	remoteSeconds = 4
	// siteFactor is the limit of an IPv6 network of 48 bits in multiples of that of an
	// address, so that one of its networks of 64 bits cannot take what the others need.
	siteFactor = 2
	// minBurst keeps a share of a small budget for each priority.
	minBurst = 4
	// maxRetryAfter bounds the Retry-After of a rejection.
	maxRetryAfter = 5 * time.Minute
	// limiterKeys bounds the memory of a limiter: it holds at most twice as many keys.
	limiterKeys = 16384
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

// limiter limits the rate of each key in a bounded amount of memory. It keeps the keys of
// two generations and forgets the keys that were not used since the one before: so many
// others were used in between. A forgotten key starts with its whole burst.
type limiter struct {
	rate, burst float64
	now         func() time.Time

	mu            sync.Mutex
	recent, older map[string]*bucket
}

func newLimiter(perSecond, burst float64, now func() time.Time) *limiter {
	return &limiter{rate: perSecond, burst: burst, now: now, recent: map[string]*bucket{}}
}

// take counts one request for the key.
func (l *limiter) take(key string) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucketOf(key).take(l.now(), 0)
}

// takeN counts n for the key, or at most its burst.
func (l *limiter) takeN(key string, n int) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketOf(key)
	n = min(n, b.tokens.Burst())
	r := b.tokens.ReserveN(l.now(), n)
	if wait = r.DelayFrom(l.now()); wait == 0 {
		return 0, true
	}
	r.CancelAt(l.now())
	return min(max(time.Second, wait), maxRetryAfter), false
}

// bucketOf returns the key's bucket and makes it a recent one.
func (l *limiter) bucketOf(key string) *bucket {
	if b := l.recent[key]; b != nil {
		return b
	}
	b := l.older[key]
	if b == nil {
		b = newBucket(l.rate, l.burst)
	}
	if len(l.recent) >= limiterKeys {
		l.recent, l.older = map[string]*bucket{}, l.recent
	}
	l.recent[key] = b
	return b
}
