package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// TestRotationThatCannotBeRead: gpuaas stuck shows a paused rotation, and does not hide it if the
// database stops to respond after the reads of other faults. Without a rotation it shows nothing.
func TestRotationThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.As(pgtest.New(t, store.Migrate), store.RoleAPIAdmin)})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.Empty(t, openRotationFault(t.Context(), s.Rotations))

	by := audit.Subject{Actor: "alice", Via: "api"}
	_, err = s.Rotations.BeginRotation(t.Context(), rotation.Begin(rotation.NodeCA, "", 0), by)
	require.NoError(t, err)
	_, err = s.Rotations.DecideRotation(t.Context(), rotation.Decided{Decision: rotation.Pause, Reason: "test"}, by)
	require.NoError(t, err)
	faults := openRotationFault(t.Context(), s.Rotations)
	require.Len(t, faults, 1)
	require.Equal(t, "paused", faults[0].Reason)

	late, cancel := context.WithCancel(t.Context())
	cancel()
	faults = openRotationFault(late, s.Rotations)
	require.Len(t, faults, 1)
	require.Equal(t, "rotation", faults[0].Component)
	require.Contains(t, faults[0].Message, "reading the rotation")
}
