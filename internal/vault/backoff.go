package vault

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Delays between retries in the background: about a second at first, then
// doubled up to a limit of its own for each task.
const (
	retryMin           = time.Second
	loginRetryMax      = time.Minute
	leaseKeyRetryMax   = time.Minute
	serverCertRetryMax = 5 * time.Minute
)

// newBackoff returns the delays between retries, with jitter. It is not safe for
// concurrent use.
func newBackoff(limit time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: retryMin, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: limit}
}

// retry calls f until it succeeds or ctx ends, and then returns ctx's error.
// failed is called after each failure with the delay before the next call.
func retry[T any](ctx context.Context, limit time.Duration, failed backoff.Notify, f backoff.Operation[T]) (T, error) {
	return backoff.Retry(ctx, f, backoff.WithBackOff(newBackoff(limit)), backoff.WithNotify(failed), backoff.WithMaxElapsedTime(0))
}
