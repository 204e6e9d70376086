package vault

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// storedPage is the number of sets that the store returns at most.
const storedPage = 64

// history is a store with sets. reads counts the reads of it.
type history struct {
	*fakes
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
	return after[:min(len(after), limit, storedPage)], nil
}

// add publishes a set with an active key and others.
func (h *history) add(t *testing.T, active string, others ...trust.VerifierKey) {
	t.Helper()
	doc := trust.VerifierSetDoc{V: 1, Version: int64(len(h.sets)) + 1, PrevHash: h.newest.Hash, ExpiresAt: time.Unix(1, 0),
		Keys: append(others, entry(active, trust.KeyActive))}
	body, err := json.Marshal(doc)
	require.NoError(t, err)
	document, err := json.Marshal(dsse.Envelope{PayloadType: trust.VerifierSetPayloadType,
		Payload: base64.StdEncoding.EncodeToString(body), Signatures: []dsse.Signature{{Sig: "AA=="}}})
	require.NoError(t, err)
	h.newest = trust.StoredSet{Version: doc.Version, PrevHash: doc.PrevHash, Hash: schema.SHA256Hex(body), Document: document}
	h.sets = append(h.sets, h.newest)
}

// entry is a key of a set, made from its ID.
func entry(id string, state trust.KeyState) trust.VerifierKey {
	public := sha256.Sum256([]byte(id))
	return trust.VerifierKey{KeyID: id, Public: public[:], State: state}
}

// The minimum set is the one in which the active key became active: not the one
// that staged it, nor one that repeats it. Every node trusts the keys of version 1.
func TestMinVerifierSet(t *testing.T) {
	t.Parallel()
	h := &history{fakes: &fakes{}}
	f := NewSetFollower(h, h.follow, slog.New(slog.DiscardHandler), func(bool) {})
	minimum := func() int64 {
		require.NoError(t, f.Refresh(t.Context()))
		v, err := f.MinVerifierSet(t.Context())
		require.NoError(t, err)
		return v
	}
	_, err := f.MinVerifierSet(t.Context())
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "no set has been read yet")
	h.add(t, "k1")
	require.Zero(t, minimum())
	h.add(t, "k1")
	h.add(t, "k1", entry("k2", trust.KeyStaged))
	require.Zero(t, minimum(), "renewed, with a staged key")
	h.add(t, "k2", entry("k1", trust.KeyGrace))
	require.Equal(t, int64(4), minimum())
	for range 100 {
		h.add(t, "k2")
	}
	reads := h.reads
	require.Equal(t, int64(4), minimum())
	require.Equal(t, reads+2, h.reads, "two pages")
	require.Equal(t, int64(4), minimum())
	require.Equal(t, reads+2, h.reads, "each set is read once")
	h.add(t, "k1")
	require.Zero(t, minimum(), "the first key again")
	fresh := NewSetFollower(h, h.follow, slog.New(slog.DiscardHandler), func(bool) {})
	require.NoError(t, fresh.Refresh(t.Context()))
	h.add(t, "k2")
	require.NoError(t, fresh.Refresh(t.Context()))
	version, err := fresh.MinVerifierSet(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(4), version, "a history of more sets than one read returns")
}

// A history that does not lead to the newest set, or cannot be read, gives no
// minimum.
func TestMinVerifierSetBrokenHistory(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(h *history){
		"a missing set":  func(h *history) { h.sets = h.sets[:2] },
		"another key":    func(h *history) { h.sets[1].Document = h.sets[0].Document },
		"no envelope":    func(h *history) { h.sets[0].Document = json.RawMessage(`{`) },
		"a gap":          func(h *history) { h.sets[1] = h.sets[2] },
		"another newest": func(h *history) { h.newest.Hash = fmt.Sprint(h.newest.Hash, "x") },
		"the database":   func(h *history) { h.err = schema.NewError(schema.KindServiceUnavailable, "unavailable") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &history{fakes: &fakes{}}
			for _, key := range []string{"k1", "k2", "k2"} {
				h.add(t, key)
			}
			spoil(h)
			f := NewSetFollower(h, h.follow, slog.New(slog.DiscardHandler), func(bool) {})
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
