package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// removalFake is both a store and a signer.
type removalFake struct {
	due    []trust.Removal
	before time.Time
	stored []trust.Removal
	err    error
}

func (f *removalFake) DueRemovals(_ context.Context, before time.Time, _ int) ([]trust.Removal, error) {
	f.before = before
	return f.due, nil
}

func (f *removalFake) PutRemoval(_ context.Context, r trust.Removal, document []byte) error {
	f.stored = append(f.stored, r)
	if string(document) != "signed "+r.NodeID {
		return errors.New("another document")
	}
	return nil
}

func (f *removalFake) SignRemoval(_ context.Context, r trust.Removal) ([]byte, error) {
	return []byte("signed " + r.NodeID), f.err
}

// Each due removal is signed for its identity with its times. While Vault is unavailable nothing
// is stored, and the next search finds the same removals.
func TestRemovalsAreSigned(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	f := &removalFake{due: []trust.Removal{{NodeID: schema.NewID(), Incarnation: 3, OperationID: schema.NewID()}},
		err: schema.NewError(schema.KindServiceUnavailable, "sealed")}
	r := removals{f, f, "test", slog.New(slog.DiscardHandler)}
	require.Error(t, r.sign(t.Context(), now))
	require.Empty(t, f.stored)
	f.err = nil
	require.NoError(t, r.sign(t.Context(), now))
	require.Equal(t, []trust.Removal{trust.NewRemoval(trust.Identity{Env: "test", NodeID: f.due[0].NodeID, Incarnation: 3}, f.due[0].OperationID, now)}, f.stored)
	require.Equal(t, now.Add(trust.RemovalLifetime/2), f.before)
}
