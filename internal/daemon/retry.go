package daemon

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// NewBackoff returns the pauses between attempts to reach a service: from 250 ms,
// doubled up to 5 s, each varied by 20 %.
func NewBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: 250 * time.Millisecond, MaxInterval: 5 * time.Second, Multiplier: 2, RandomizationFactor: 0.2}
}

// Retry calls try until it succeeds, with the pauses of NewBackoff. failed gets
// each error and the pause after it. Retry returns the context's cause when the
// context ends first, and an error that try wraps with backoff.Permanent at once.
func Retry(ctx context.Context, try func() error, failed func(err error, pause time.Duration)) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, try() },
		backoff.WithBackOff(NewBackoff()), backoff.WithMaxElapsedTime(0), backoff.WithNotify(failed))
	return err
}
