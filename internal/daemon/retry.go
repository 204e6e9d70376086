package daemon

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The pauses between two attempts to reach a service.
const (
	retryMin = 250 * time.Millisecond
	retryMax = 5 * time.Second
)

// NewBackoff returns the pauses between attempts to reach a service: from 250 ms,
// doubled up to 5 s, each varied by 20 %.
func NewBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: retryMin, MaxInterval: retryMax, Multiplier: 2, RandomizationFactor: 0.2}
}

// Retry calls try until it succeeds, with the pauses of NewBackoff. failed gets
// each error and the pause after it. Retry returns the context's cause when the
// context ends first, and try's error at once when permanent reports true for it.
func Retry(ctx context.Context, try func() error, permanent func(error) bool, failed func(err error, pause time.Duration)) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := try()
		if err != nil && permanent(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(NewBackoff()), backoff.WithMaxElapsedTime(0), backoff.WithNotify(failed))
	return err
}
