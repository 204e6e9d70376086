package vault

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// race is a store in which another process publishes first.
type race struct {
	*fakes
	rival trust.StoredSet
	lost  int // how many publications the rival wins
	puts  int
}

func (r *race) PutSet(_ context.Context, set trust.StoredSet, _ audit.Subject) error {
	r.puts++
	r.readErr = nil
	if r.lost > 0 {
		r.lost--
		r.newest = r.rival
		return schema.NewError(schema.KindInvalidRequest, "outdated").WithReason("set_outdated")
	}
	r.newest = set
	return nil
}

func TestPublish(t *testing.T) {
	b := prepared(t)
	by, none := audit.Subject{Actor: "test"}, schema.NewError(schema.KindNotFound, "none")
	t.Run("another process is faster", func(t *testing.T) {
		r := &race{fakes: &fakes{readErr: none}, rival: b.set, lost: 1}
		version, err := b.sets(t).Publish(t.Context(), r, by, time.Now())
		require.NoError(t, err)
		require.Equal(t, int64(1), version)
		require.Equal(t, b.set, r.newest, "one chain")
		require.Equal(t, 1, r.puts)
	})
	t.Run("another process is always faster", func(t *testing.T) {
		r := &race{fakes: &fakes{newest: b.set}, rival: b.set, lost: 100}
		_, err := b.sets(t).Publish(t.Context(), r, by, time.Now().Add(VerifierSetLifetime))
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Equal(t, publishAttempts, r.puts)
	})
	t.Run("an unavailable database creates no first set", func(t *testing.T) {
		r := &race{fakes: &fakes{readErr: schema.NewError(schema.KindServiceUnavailable, "unavailable")}}
		_, err := b.sets(t).Publish(t.Context(), r, by, time.Now())
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Zero(t, r.puts)
	})
}
