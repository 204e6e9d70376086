package verifierset

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// publishAttempts limits how often Publish retries after concurrent publications.
const publishAttempts = 3

// Publisher stores verifier sets for Publish. Errors are *schema.Error.
type Publisher interface {
	// NewestSet is that of Store.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// PutSet stores the successor of the newest set. Reason set_outdated if the
	// set does not follow the newest one.
	PutSet(ctx context.Context, set trust.StoredSet, by audit.Subject) error
}

// Author creates and signs verifier sets.
type Author interface {
	// First returns version 1.
	First(ctx context.Context, now time.Time) (trust.StoredSet, error)
	// Renewal returns the successor of a set with the same keys and a new expiry,
	// or false if the renewal is not due.
	Renewal(ctx context.Context, set trust.StoredSet, now time.Time) (next trust.StoredSet, due bool, err error)
}

// Publish publishes the first verifier set, or the successor of the newest set if
// its renewal is due, and returns the newest version. If another process publishes
// a set at the same time, Publish starts over with that set.
func Publish(ctx context.Context, sets Publisher, author Author, by audit.Subject, now time.Time) (version int64, err error) {
	for range publishAttempts {
		newest, err := sets.NewestSet(ctx)
		next, due := trust.StoredSet{}, true
		switch {
		case schema.KindOf(err) == schema.KindNotFound:
			next, err = author.First(ctx, now)
		case err == nil:
			next, due, err = author.Renewal(ctx, newest, now)
		}
		if err != nil {
			return 0, err
		}
		if !due {
			return newest.Version, nil
		}
		err = sets.PutSet(ctx, next, by)
		if err == nil {
			return next.Version, nil
		}
		if schema.AsError(err).Reason != "set_outdated" {
			return 0, err
		}
	}
	return 0, schema.NewError(schema.KindServiceUnavailable, "the verifier set changed concurrently; try again").WithNext("gpuaas admin setup")
}
