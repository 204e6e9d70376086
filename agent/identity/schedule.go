package identity

import (
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

	retries, refusals, renewals, locks, removals wait.Backoff
}

// SetTiming replaces the intervals and resets the backoffs. A nil jitter is random.
func (s *schedule) SetTiming(t Timing, j wait.Jitter) {
	s.timing, s.jitter = t, j
	s.retries = wait.Backoff{Range: t.Retry, Jitter: j}
	s.refusals = wait.Backoff{Range: t.Refused, Jitter: j}
	s.renewals = wait.Backoff{Range: t.Renewal, Jitter: j}
	s.locks = wait.Backoff{Range: t.Locked, Jitter: j}
	s.removals = wait.Backoff{Range: t.Removed, Jitter: j}
}

// RetryIn returns the time until the manager acts again.
func (s *schedule) RetryIn() time.Duration { return s.retryAt.Left(s.local()) }
