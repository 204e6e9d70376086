package vault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/rotation"
)

// TestNodeCALostRollback: if the database lost the end of a rollback, Vault has retired the new CA.
// Whatever phase is on record, the old CA continues to issue, and a rollback ends the rotation again.
func TestNodeCALostRollback(t *testing.T) {
	c := rotatingCA(t)
	for _, p := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Restore} {
		c.apply(p)
	}
	ended := c.apply(rotation.Remove)
	for _, p := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace, rotation.Retire} {
		e := c.refused(p)
		require.Equal(t, "new_key_retired", e.Reason)
		require.Equal(t, "Vault has retired the new CA g2, so the rotation can only be rolled back", e.Message)
		require.Equal(t, "gpuaas rotate rollback --reason TEXT", e.Next)
		c.requireCA(ended, 1, 1)
	}
	for _, p := range []rotation.Phase{rotation.Restore, rotation.Remove} {
		require.Equal(t, ended, c.apply(p), p)
		c.requireCA(ended, 1, 1)
	}
}

// TestNodeCALostRotation: if the database lost a whole rotation, both CAs of the record are retired.
// The CA of the lost rotation continues to issue, and the rotation on record ends with it. A rollback
// on record does not continue before it is resumed.
func TestNodeCALostRotation(t *testing.T) {
	c := rotatingCA(t)
	first := c.r
	for range 2 {
		for _, p := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Retire} {
			c.apply(p)
		}
		c.plan()
	}
	require.Equal(t, "g3", c.r.OldKey)
	c.r.NewKey = "g3"
	ended := c.apply(rotation.Retire)
	c.r = first
	for _, p := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace, rotation.Retire} {
		require.Equal(t, ended, c.apply(p), p)
		c.requireCA(ended, 1, 2)
	}
	for _, p := range []rotation.Phase{rotation.Restore, rotation.Remove} {
		require.Equal(t, "old_key_retired", c.refused(p).Reason)
		c.requireCA(ended, 1, 2)
	}
}

// TestNodeCARetiredBeforeStage: if the old CA is retired before the rotation creates the new one, the
// new one issues at once.
func TestNodeCARetiredBeforeStage(t *testing.T) {
	c := rotatingCA(t)
	old, err := c.rotator.issuing(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.rotator.retireCA(t.Context(), old))
	staged := c.apply(rotation.Stage)
	require.Equal(t, "CN=gpuaas test node CA G2", staged.Issuer)
	c.requireCA(staged, 1, 1)
}
