package server

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// oneCheckpoint has the newest checkpoint, or no database.
type oneCheckpoint struct {
	checkpointStore

	newest     audit.Checkpoint
	err        error
	unverified []string
}

func (s *oneCheckpoint) Newest(context.Context) (audit.Checkpoint, error) { return s.newest, s.err }
func (s *oneCheckpoint) Has(context.Context, int64, string) (bool, error) { return true, nil }
func (s *oneCheckpoint) RecordUnverified(_ context.Context, nodeID string, _ audit.Checkpoint) error {
	s.unverified = append(s.unverified, nodeID)
	return nil
}

// While the keys cannot be read, nodes still receive the newest checkpoint. While the database
// does not respond, the keys are still read.
func TestCheckpointsAndKeysAreRefreshedApart(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	signed := func(number int64) audit.Checkpoint {
		c := audit.Checkpoint{Env: testEnv, Number: number, Hash: schema.SHA256Hex(nil), At: time.Unix(number, 0).UTC(), KeyID: "k.v1"}
		c.Signature = ed25519.Sign(private, c.Signed())
		return c
	}
	sealed, down := errors.New("sealed"), errors.New("down")
	store, keysErr := &oneCheckpoint{newest: signed(1)}, sealed
	c := &checkpoints{store: store, env: testEnv, log: slog.New(slog.DiscardHandler), unsigned: map[string]bool{},
		keys: func(context.Context) (map[string]ed25519.PublicKey, error) {
			return map[string]ed25519.PublicKey{"k.v1": public}, keysErr
		}}
	require.ErrorIs(t, c.refresh(t.Context()), sealed)
	require.Equal(t, signed(1).String(), c.Newest())
	store.newest = signed(2)
	require.ErrorIs(t, c.refresh(t.Context()), sealed)
	require.Equal(t, signed(2).String(), c.Newest())

	forged := signed(3)
	forged.Number = 4
	require.False(t, c.Compare(t.Context(), "n", forged.String()), "the keys are not known yet")
	store.err, keysErr = down, nil
	require.ErrorIs(t, c.refresh(t.Context()), down)
	require.True(t, c.Compare(t.Context(), "n", forged.String()))
	require.Equal(t, []string{"n"}, store.unverified)
	require.False(t, c.Compare(t.Context(), "n", signed(3).String()))
	require.Equal(t, signed(2).String(), c.Newest())

	store.err, keysErr = down, sealed
	require.False(t, c.Compare(t.Context(), "n", audit.Checkpoint{Env: testEnv, Number: 5, Hash: schema.SHA256Hex(nil), At: time.Unix(5, 0).UTC(), KeyID: "k.v2", Signature: forged.Signature}.String()))
	err = c.refresh(t.Context())
	require.ErrorIs(t, err, down)
	require.ErrorIs(t, err, sealed)
}
