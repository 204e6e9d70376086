package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// The lock is written after the request that proved the clone was rolled back. It
// does not lock an incarnation that was reissued in between.
func TestLockIsForOneIncarnation(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, err := Open(ctx, Config{URL: pgtest.New(t, Migrate)})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	n, err := s.Admin.Register(ctx, schema.NewID(), wire.RegisterNodeRequest{Host: "gpu-1", SKU: "cpu-dev", RegionCode: "r"}, audit.Subject{Actor: "alice@ops"})
	require.NoError(t, err)
	_, err = s.db.q.NextIncarnation(ctx, n.ID)
	require.NoError(t, err)
	for _, c := range []struct {
		incarnation int64
		locked      bool
	}{{1, false}, {2, true}} {
		err := refuseClone(clone{n.ID, c.incarnation, trust.LockedBySerial}, audit.Event{Stream: n.ID, Target: n.ID, Actor: systemActor})
		require.Error(t, s.db.write(ctx, "locking", func(context.Context, *tx) error { return err }))
		node, err := s.db.q.LockNode(ctx, n.ID)
		require.NoError(t, err)
		require.Equal(t, c.locked, node.Locked, "incarnation %d", c.incarnation)
	}
}
