package identity

import (
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
)

// schedule is when the manager acts again.
type schedule struct {
	local  func() time.Time
	timing Timing
	jitter wait.Jitter

	retryAt     wait.Timer // the manager does not act before
	pollBackoff wait.Timer // no request uses the identity before
	// mutedUntil is when heartbeats resume, unix ns of the local clock.
	mutedUntil atomic.Int64

	retries, refusals, renewals, locks wait.Backoff
}

// SetTiming replaces the intervals and starts the backoffs over. A nil jitter
// is random.
func (s *schedule) SetTiming(t Timing, j wait.Jitter) {
	s.timing, s.jitter = t, j
	s.retries = wait.Backoff{Range: t.Retry, Jitter: j}
	s.refusals = wait.Backoff{Range: t.Refused, Jitter: j}
	s.renewals = wait.Backoff{Range: t.Renewal, Jitter: j}
	s.locks = wait.Backoff{Range: t.Locked, Jitter: j}
}

// Muted reports whether heartbeats must wait. It may be called from any
// goroutine.
func (s *schedule) Muted(now time.Time) bool {
	left := time.Unix(0, s.mutedUntil.Load()).Sub(now)
	return left > 0 && left <= s.timing.Locked.Max
}

// RetryIn returns the time until the manager acts again.
func (s *schedule) RetryIn() time.Duration { return s.retryAt.Left(s.local()) }
