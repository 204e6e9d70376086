package worker

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// Of two workers one signs a checkpoint in an interval, on the real database and Vault.
func TestWorkersSignCheckpoints(t *testing.T) {
	b := prepared(t)
	_, err := b.publish(t) // an audit event
	require.NoError(t, err)
	client := b.login(t)
	keys, err := client.CheckpointKeys(t.Context())
	require.NoError(t, err)
	c := checkpoints{b.store.Checkpoints, client, slog.New(slog.DiscardHandler), time.Minute}
	now := time.Now()
	for range 2 {
		require.NoError(t, c.sign(t.Context(), now))
	}
	newest, err := b.store.Checkpoints.Newest(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), newest.Number)
	require.True(t, newest.Verify("test", keys))
	require.NoError(t, c.sign(t.Context(), now.Add(time.Minute)), "nothing changed")

	next, err := b.store.Checkpoints.Next(t.Context())
	require.NoError(t, err)
	require.Empty(t, next.Heads)
	require.Equal(t, newest.Hash, next.Prev)
	require.Equal(t, audit.SystemStream, covered(t, b)[0].Stream)
}

// covered are the heads in the first checkpoint.
func covered(t *testing.T, b *bench) []audit.Head {
	t.Helper()
	list, err := b.store.Checkpoints.After(t.Context(), 0, 1)
	require.NoError(t, err)
	var body audit.CheckpointBody
	require.NoError(t, json.Unmarshal(list[0].Body, &body))
	return body.Heads
}
