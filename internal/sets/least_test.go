package sets

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// history is a database with sets; reads counts the readings of it.
type history struct {
	*world
	sets  []trust.StoredSet
	reads int
	err   error
}

func (h *history) SetsAfter(_ context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	h.reads++
	if h.err != nil {
		return nil, h.err
	}
	after := h.sets[min(int(version), len(h.sets)):]
	return after[:min(len(after), limit)], nil
}

// add publishes a set with an active key and others.
func (h *history) add(t *testing.T, active string, others ...trust.VerifierSetKey) {
	t.Helper()
	doc := trust.VerifierSetDoc{V: 1, Version: int64(len(h.sets)) + 1, PrevHash: h.newest.Hash,
		Keys: append(others, trust.VerifierSetKey{KeyID: active, Public: "of " + active, State: trust.KeyActive})}
	body, err := json.Marshal(doc)
	require.NoError(t, err)
	document, err := json.Marshal(map[string][]byte{"payload": body})
	require.NoError(t, err)
	sum := sha256.Sum256(body)
	h.newest = trust.StoredSet{Version: doc.Version, PrevHash: doc.PrevHash, Hash: hex.EncodeToString(sum[:]), Document: document}
	h.sets = append(h.sets, h.newest)
}

// The least set is where the active key became active: not where it was staged,
// nor where a renewal repeats it. What the first set knows, every node does.
func TestLeastSet(t *testing.T) {
	t.Parallel()
	h := &history{world: &world{}}
	f := New(h, h, slog.New(slog.DiscardHandler), func(bool) {})
	least := func() int64 {
		require.NoError(t, f.Refresh(t.Context()))
		v, err := f.MinVerifierSet(t.Context())
		require.NoError(t, err)
		return v
	}
	_, err := f.MinVerifierSet(t.Context())
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "no set was read yet")
	h.add(t, "k1")
	require.Zero(t, least())
	h.add(t, "k1")
	h.add(t, "k1", trust.VerifierSetKey{KeyID: "k2", Public: "of k2", State: trust.KeyStaged})
	require.Zero(t, least(), "renewed, with a staged key")
	h.add(t, "k2", trust.VerifierSetKey{KeyID: "k1", Public: "of k1", State: trust.KeyGrace})
	require.Equal(t, int64(4), least())
	for range 2 * setsPage {
		h.add(t, "k2")
	}
	reads := h.reads
	require.Equal(t, int64(4), least())
	require.Equal(t, reads+3, h.reads)
	require.Equal(t, int64(4), least())
	require.Equal(t, reads+3, h.reads, "read once for each newest set")
}

// A history that does not lead to the newest set, or does not come, names no
// set.
func TestLeastSetOfABrokenHistory(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(h *history){
		"a missing set":  func(h *history) { h.sets = h.sets[:2] },
		"another key":    func(h *history) { h.sets[1].Document = h.sets[0].Document },
		"no envelope":    func(h *history) { h.sets[0].Document = json.RawMessage(`{`) },
		"a gap":          func(h *history) { h.sets[1] = h.sets[2] },
		"another newest": func(h *history) { h.newest.Hash = fmt.Sprint(h.newest.Hash, "x") },
		"the database":   func(h *history) { h.err = schema.NewError(schema.KindServiceUnavailable, "away") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &history{world: &world{}}
			for _, key := range []string{"k1", "k2", "k2"} {
				h.add(t, key)
			}
			spoil(h)
			f := New(h, h, slog.New(slog.DiscardHandler), func(bool) {})
			require.NoError(t, f.Refresh(t.Context()))
			_, err := f.MinVerifierSet(t.Context())
			if h.err != nil {
				require.ErrorIs(t, err, h.err)
				return
			}
			require.Equal(t, "bad_verifier_history", schema.AsError(err).Reason)
		})
	}
}
