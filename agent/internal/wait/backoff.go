package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// Range bounds the delays of a backoff.
type Range struct{ Min, Max time.Duration }

// Backoff is a delay that doubles from Min to Max and stays there. Its zero
// value does not wait.
type Backoff struct {
	Range
	Jitter Jitter // nil is a random one
	step   time.Duration
}

// Next counts one more failure and returns how long to wait: between half and
// all of the current step, so that many agents do not return at the same time.
func (b *Backoff) Next() time.Duration { return b.NextWithin(b.Max) }

// NextWithin is Next with a lower maximum, but never one below Min.
func (b *Backoff) NextWithin(most time.Duration) time.Duration {
	d := min(max(b.Min, b.step), max(b.Min, min(b.Max, most)))
	b.step = min(2*d, b.Max)
	return d/2 + b.Jitter.UpTo(d/2)
}

// Reset starts over after a success.
func (b *Backoff) Reset() { b.step = 0 }

// Sleep waits d or until ctx ends, and returns the context's error then.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Jitter draws a duration from zero to most. Nil draws at random.
type Jitter func(most time.Duration) time.Duration

// UpTo draws a duration from zero to most.
func (j Jitter) UpTo(most time.Duration) time.Duration {
	if j != nil {
		return j(most)
	}
	return rand.N(most + 1) //nolint:gosec // spreads load; nothing depends on it being unpredictable
}

// Timer is a wait that a clock set back does not extend. Its zero value has
// ended.
type Timer struct {
	until  time.Time
	length time.Duration
}

// Set starts the wait.
func (t *Timer) Set(now time.Time, length time.Duration) { t.until, t.length = now.Add(length), length }

// Left returns how much of the wait is left, at most its whole length.
func (t *Timer) Left(now time.Time) time.Duration {
	left := t.until.Sub(now)
	if left <= 0 || left > t.length {
		return 0
	}
	return left
}
