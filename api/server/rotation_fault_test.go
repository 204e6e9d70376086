package server

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// TestRotationThatCannotBeRead: gpuaas stuck shows a paused rotation, and does not hide it if the
// database stops responding after the reads of other faults. An outage of the database is one fault, and
// without a rotation there is none.
func TestRotationThatCannotBeRead(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, store.Migrate)
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.As(url, store.RoleAPIAdmin)})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	faults := func(ctx context.Context) []wire.ControlPlaneFault {
		return databaseFaults(ctx, s, slog.New(slog.DiscardHandler))
	}
	require.Empty(t, faults(t.Context()))

	by := audit.Subject{Actor: "alice", Via: "api"}
	_, err = s.Rotations.BeginRotation(t.Context(), rotation.Begin(rotation.NodeCA, "", 0), by)
	require.NoError(t, err)
	_, err = s.Rotations.DecideRotation(t.Context(), rotation.Decided{Decision: rotation.Pause, Reason: "test"}, by)
	require.NoError(t, err)
	paused := faults(t.Context())
	require.Len(t, paused, 1)
	require.Equal(t, "paused", paused[0].Reason)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	outage := faults(gone)
	require.Len(t, outage, 1)
	require.Equal(t, "postgres", outage[0].Component)

	require.NoError(t, postgres.Run(t.Context(), url, "REVOKE SELECT ON rotations FROM "+store.RoleAPIAdmin))
	late := faults(t.Context())
	require.Len(t, late, 1)
	require.Equal(t, "rotation", late[0].Component)
	require.Contains(t, late[0].Message, "reading the rotation")
}
