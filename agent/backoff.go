package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a delay that doubles from min to max and stays there, however
// often it is asked.
type backoff struct {
	min, max time.Duration
	failures int
	draw     Draw // nil is a real one
}

// next counts one more failure and returns how long to wait: between half and
// all of the current step, so that many agents do not come back at once.
func (b *backoff) next() time.Duration {
	d := b.step()
	if d < b.max {
		b.failures++
	}
	return d/2 + b.draw.upTo(d/2)
}

// step is the current delay without jitter. It cannot overflow: doubling ends
// at max.
func (b *backoff) step() time.Duration {
	d := min(b.min, b.max)
	for range b.failures {
		if d >= b.max {
			break
		}
		d *= 2
	}
	return min(d, b.max)
}

// reset starts over after a success.
func (b *backoff) reset() { b.failures = 0 }

// pause waits d or until ctx ends, and returns the context's error then.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Draw draws a duration from zero to most.
type Draw func(most time.Duration) time.Duration

func (d Draw) upTo(most time.Duration) time.Duration {
	if d != nil {
		return d(most)
	}
	return rand.N(most + 1) //nolint:gosec // spreads load; nothing is to be guessed
}

// jitter is d and up to half of it more: what a server asked for, spread.
func (d Draw) jitter(by time.Duration) time.Duration { return by + d.upTo(by/2) }
