package verifierset

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// race is a store in which another process publishes first, and an author that
// counts.
type race struct {
	newest  *trust.StoredSet
	err     error
	rival   trust.StoredSet
	lost    int // how many publications the rival wins
	firsts  int
	renewal bool
}

func (r *race) NewestSet(context.Context) (trust.StoredSet, error) {
	if r.newest == nil {
		return trust.StoredSet{}, schema.NewError(schema.KindNotFound, "none")
	}
	return *r.newest, r.err
}

func (r *race) PutSet(_ context.Context, set trust.StoredSet, _ audit.Subject) error {
	if r.lost > 0 {
		r.lost--
		r.newest = &r.rival
		return schema.NewError(schema.KindInvalidRequest, "outdated").WithReason("set_outdated")
	}
	r.newest = &set
	return nil
}

func (r *race) First(context.Context, time.Time) (trust.StoredSet, error) {
	r.firsts++
	return trust.StoredSet{Version: 1, Hash: "mine"}, nil
}

func (r *race) Renewal(_ context.Context, s trust.StoredSet, _ time.Time) (trust.StoredSet, bool, error) {
	return trust.StoredSet{Version: s.Version + 1}, r.renewal, nil
}

func TestPublish(t *testing.T) {
	t.Parallel()
	t.Run("another process is faster", func(t *testing.T) {
		t.Parallel()
		r := &race{rival: trust.StoredSet{Version: 1, Hash: "rival"}, lost: 1}
		version, err := Publish(t.Context(), r, r, audit.Subject{Actor: "test"}, time.Now())
		require.NoError(t, err)
		require.Equal(t, int64(1), version)
		require.Equal(t, "rival", r.newest.Hash, "one chain")
		require.Equal(t, 1, r.firsts)
	})
	t.Run("another process is always faster", func(t *testing.T) {
		t.Parallel()
		r := &race{rival: trust.StoredSet{Version: 1}, lost: 100, renewal: true}
		_, err := Publish(t.Context(), r, r, audit.Subject{Actor: "test"}, time.Now())
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	})
	t.Run("an unavailable database creates no first set", func(t *testing.T) {
		t.Parallel()
		r := &race{newest: &trust.StoredSet{}, err: schema.NewError(schema.KindServiceUnavailable, "unavailable")}
		_, err := Publish(t.Context(), r, r, audit.Subject{Actor: "test"}, time.Now())
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Zero(t, r.firsts)
	})
}
