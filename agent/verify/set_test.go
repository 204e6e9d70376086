package verify

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// opened is the trust of a node with a bundle, over a state folder.
func opened(c *agenttest.Chain, dir string, bundle trust.TaskTrust) (*SetStore, *agenttest.LogBuffer) {
	c.T.Helper()
	log := &agenttest.LogBuffer{}
	r, err := OpenSets(disk.At(dir), c.F.ID.Env, bundle, &Clock{local: time.Now}, wait.Range{Min: time.Millisecond, Max: 20 * time.Millisecond}, slog.New(slog.NewJSONHandler(log, nil)))
	require.NoError(c.T, err)
	return r, log
}

// TestFollowSets: a node that was off accepts one set after the other, over
// expired ones, stores each and never goes back, whatever bundle it has.
func TestFollowSets(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	c := agenttest.NewChain(t, f)
	c.Add(agenttest.NewKey(t), func(d *trust.VerifierSetDoc) { d.ExpiresAt = time.Now().Add(-time.Hour) })
	c.Add(agenttest.NewKey(t), nil)
	for name, floor := range map[string]int{"from a bundle without a set": 0, "from the first": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r, _ := opened(c, dir, c.Bundle(floor))
			r.Follow(t.Context(), c.Floor(3), c.Source)
			require.Equal(t, c.Hash[2], r.Current().Hash)
			for _, older := range []int{0, 1} {
				again, _ := opened(c, dir, c.Bundle(older))
				require.Equal(t, c.Hash[2], again.Current().Hash, "a restart goes back")
				require.NotNil(t, again.Current().Document)
			}
		})
	}
}

// TestConfigureReissuedBundle wins where it is of a newer set, and is remembered.
func TestConfigureReissuedBundle(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	c := agenttest.NewChain(t, f)
	next := agenttest.NewKey(t)
	c.Add(next, nil)
	dir := t.TempDir()
	r, _ := opened(c, dir, c.Bundle(1))
	newer := trust.TaskTrust{Roots: f.Trust().Roots, Floor: c.Floor(2),
		Keys: trust.VerifierKeys{{State: trust.KeyActive, KeyID: agenttest.KeyName(next), Public: agenttest.PublicOf(next)}}}
	r.Configure(newer)
	require.Equal(t, int64(2), r.Current().Doc.Version)
	back, _ := opened(c, dir, c.Bundle(1))
	require.Equal(t, int64(2), back.Current().Doc.Version, "an older bundle wins after a restart")
	back.Follow(t.Context(), c.Floor(2), c.Source)
	require.False(t, back.Current().Doc.ExpiresAt.IsZero(), "the dates of a bundle's set are learned")
}

// TestRejectBadSets: each of these sets is rejected and logged, and the set in use
// stays.
func TestRejectBadSets(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]struct {
		reason string
		shown  func(c *agenttest.Chain) (doc json.RawMessage, named trust.VerifierSetRef)
	}{
		"served old": {trust.ReasonSetOld, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) { return c.Docs[0], c.Floor(1) }},
		"gap": {trust.ReasonSetGap, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.Doc(agenttest.NewKey(c.T), func(d *trust.VerifierSetDoc) { d.Version++ })
			return c.Sign(d), trust.VerifierSetRef{Version: d.Version, Hash: c.Hash[0]}
		}},
		"fork of the set in use": {trust.ReasonSetFork, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.Doc(agenttest.NewKey(c.T), func(d *trust.VerifierSetDoc) { d.Version, d.PrevHash = 2, c.Hash[0] })
			return agenttest.SignWith(c.T, trust.VerifierSetPayloadType, d, agenttest.EdSigner{Key: c.F.Root, ID: ""}, agenttest.EdSigner{Key: c.Keys[0], ID: ""}), trust.VerifierSetRef{Version: 2, Hash: c.Hash[0]}
		}},
		"successor of a fork": {trust.ReasonSetFork, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.Doc(agenttest.NewKey(c.T), func(d *trust.VerifierSetDoc) { d.PrevHash = c.Hash[0] })
			return c.Sign(d), trust.VerifierSetRef{Version: 3, Hash: c.Hash[0]}
		}},
		"withheld": {"set_withheld", func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			return nil, trust.VerifierSetRef{Version: 3, Hash: c.Hash[0]}
		}},
		"without the root": {refusal.OfSet + trust.ReasonSignature, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.Doc(agenttest.NewKey(c.T), nil)
			return agenttest.SignWith(c.T, trust.VerifierSetPayloadType, d, agenttest.EdSigner{Key: c.Keys[1], ID: ""}), trust.VerifierSetRef{Version: 3, Hash: c.Hash[0]}
		}},
		"without the active key": {refusal.OfSet + trust.ReasonSignature, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.Doc(agenttest.NewKey(c.T), nil)
			return agenttest.SignWith(c.T, trust.VerifierSetPayloadType, d, agenttest.EdSigner{Key: c.F.Root, ID: ""}), trust.VerifierSetRef{Version: 3, Hash: c.Hash[0]}
		}},
		"by the key before the active one": {refusal.OfSet + trust.ReasonSignature, func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.Doc(agenttest.NewKey(c.T), nil)
			return agenttest.SignWith(c.T, trust.VerifierSetPayloadType, d, agenttest.EdSigner{Key: c.F.Root, ID: ""}, agenttest.EdSigner{Key: c.Keys[0], ID: ""}), trust.VerifierSetRef{Version: 3, Hash: c.Hash[0]}
		}},
		"other environment": {refusal.OfSet + trust.ReasonEnvironment, changedSet(func(d *trust.VerifierSetDoc) { d.Env = "prod" })},
		"no end":            {refusal.OfSet + trust.ReasonBody, changedSet(func(d *trust.VerifierSetDoc) { d.ExpiresAt = time.Time{} })},
		"no active key":     {refusal.OfSet + trust.ReasonBody, changedSet(func(d *trust.VerifierSetDoc) { d.Keys[0].State = trust.KeyGrace })},
		"a key twice":       {refusal.OfSet + trust.ReasonBody, changedSet(func(d *trust.VerifierSetDoc) { d.Keys = append(d.Keys, d.Keys[0]) })},
		"a key of no state": {refusal.OfSet + trust.ReasonBody, changedSet(func(d *trust.VerifierSetDoc) {
			d.Keys = append(d.Keys, trust.VerifierKey{KeyID: "x", Public: make([]byte, 32), State: "root"})
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agenttest.NewChain(t, agenttest.NewQuiet(t))
			c.Add(agenttest.NewKey(t), nil)
			r, log := opened(c, t.TempDir(), c.Bundle(1))
			r.Follow(t.Context(), c.Floor(2), c.Source)
			require.Equal(t, int64(2), r.Current().Doc.Version)
			doc, named := bad.shown(c)
			asked := 0
			r.Follow(t.Context(), named, func(context.Context, int64) (trust.VerifierSets, error) {
				asked++
				if doc == nil {
					return trust.VerifierSets{}, nil
				}
				return trust.VerifierSets{Sets: []json.RawMessage{doc}}, nil
			})
			want := 2 // a rejected set is requested once more, with those before it
			if bad.reason == trust.ReasonSetOld || bad.reason == refusal.SetWithheld {
				want = 1
			}
			require.Equal(t, want, asked)
			require.Equal(t, c.Hash[1], r.Current().Hash)
			require.Contains(t, log.String(), `"reason":"`+bad.reason+`"`)
		})
	}
}

func changedSet(change func(*trust.VerifierSetDoc)) func(*agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
	return func(c *agenttest.Chain) (json.RawMessage, trust.VerifierSetRef) {
		return c.Sign(c.Doc(agenttest.NewKey(c.T), change)), trust.VerifierSetRef{Version: 3, Hash: c.Hash[0]}
	}
}

// TestAcceptHigherEpoch of a mistake: signed by the root alone, of any
// version.
func TestAcceptHigherEpoch(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]int64{"lower": 1, "equal": 2, "higher": 9} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agenttest.NewChain(t, agenttest.NewQuiet(t))
			c.Add(agenttest.NewKey(t), nil)
			dir := t.TempDir()
			r, _ := opened(c, dir, c.Bundle(1))
			r.Follow(t.Context(), c.Floor(2), c.Source)
			d := c.Doc(agenttest.NewKey(t), func(d *trust.VerifierSetDoc) { d.Version, d.Epoch, d.PrevHash = version, 1, "" })
			body, err := json.Marshal(d)
			require.NoError(t, err)
			doc := agenttest.SignWith(t, trust.VerifierSetPayloadType, d, agenttest.EdSigner{Key: c.F.Root, ID: ""})
			r.Follow(t.Context(), trust.VerifierSetRef{Version: version, Hash: schema.SHA256Hex(body)}, func(context.Context, int64) (trust.VerifierSets, error) {
				return trust.VerifierSets{Sets: []json.RawMessage{doc}}, nil
			})
			require.Equal(t, schema.SHA256Hex(body), r.Current().Hash)
			r.Follow(t.Context(), c.Floor(2), c.Source)
			require.Equal(t, schema.SHA256Hex(body), r.Current().Hash, "the lower epoch comes back")
			again, _ := opened(c, dir, c.Bundle(1))
			require.Equal(t, version, again.Current().Doc.Version)
		})
	}
}

// A set of a higher epoch and a lower version than the set that the bundle names stays in use when
// the agent restarts with the bundle.
func TestBundleDoesNotReplaceAHigherEpoch(t *testing.T) {
	t.Parallel()
	c := agenttest.NewChain(t, agenttest.NewQuiet(t))
	c.Add(agenttest.NewKey(t), nil)
	c.Add(agenttest.NewKey(t), nil)
	dir := t.TempDir()
	r, _ := opened(c, dir, c.Bundle(3))
	r.Follow(t.Context(), c.Floor(3), c.Source)
	kept := agenttest.NewChain(t, c.F)
	kept.Add(agenttest.NewKey(t), func(d *trust.VerifierSetDoc) { d.Epoch = 1 })
	r.Follow(t.Context(), kept.Floor(2), kept.Source)
	require.Equal(t, kept.Hash[1], r.Current().Hash)
	r.Configure(c.Bundle(3))
	require.Equal(t, kept.Hash[1], r.Current().Hash)
	again, _ := opened(c, dir, c.Bundle(3))
	require.Equal(t, kept.Hash[1], again.Current().Hash)
	again.Follow(t.Context(), kept.Floor(2), kept.Source)
	require.Equal(t, kept.Hash[1], again.Current().Hash)
}

// A set in which a revoked key is valid again is skipped, and a later one without it is accepted.
func TestRevokedKeyIsNotValidAgain(t *testing.T) {
	t.Parallel()
	c := agenttest.NewChain(t, agenttest.NewQuiet(t))
	revoked := c.Set[0].Keys[0]
	revoked.State = trust.KeyRevoked
	valid := revoked
	valid.State = trust.KeyGrace
	c.Add(agenttest.NewKey(t), func(d *trust.VerifierSetDoc) { d.Epoch, d.Keys = 1, append(d.Keys, revoked) })
	r, log := opened(c, t.TempDir(), c.Bundle(1))
	r.Follow(t.Context(), c.Floor(2), c.Source)
	held := r.Current().Hash
	require.Equal(t, c.Hash[1], held)

	later := agenttest.NewChain(t, c.F) // of a database that lost the second set
	later.Add(agenttest.NewKey(t), func(d *trust.VerifierSetDoc) { d.Epoch, d.Keys = 2, append(d.Keys, valid) })
	r.Follow(t.Context(), later.Floor(2), later.Source)
	require.Equal(t, held, r.Current().Hash)
	require.Contains(t, log.String(), refusal.OfSet+trust.ReasonKeyRevoked)
	later.Add(agenttest.NewKey(t), func(d *trust.VerifierSetDoc) { d.Epoch, d.Keys = 3, append(d.Keys, revoked) })
	all := func(context.Context, int64) (trust.VerifierSets, error) {
		return trust.VerifierSets{Sets: later.Docs}, nil
	}
	r.Follow(t.Context(), later.Floor(3), all)
	require.Equal(t, later.Hash[2], r.Current().Hash)
}

// A set of a higher epoch replaces a set that the database lost, and names the root key that
// signed the later ones. Its version is not above that of the lost set, which the node names.
func TestCatchUpFromAnEarlierVersion(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	lost, kept := agenttest.NewChain(t, f), agenttest.NewChain(t, f)
	lost.Add(agenttest.NewKey(t), nil)
	r, log := opened(lost, t.TempDir(), lost.Bundle(1))
	r.Follow(t.Context(), lost.Floor(2), lost.Source)
	require.Equal(t, lost.Hash[1], r.Current().Hash)

	_, root, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	roots := []trust.VerifierKey{{KeyID: "root2", State: trust.KeyRoot, Public: agenttest.PublicOf(root)}}
	change := func(d *trust.VerifierSetDoc) { d.Epoch, d.Roots = 1, roots }
	kept.Add(agenttest.NewKey(t), change)
	for range 70 {
		kept.AddWith(root, agenttest.NewKey(t), change)
	}
	paged := func(_ context.Context, after int64) (trust.VerifierSets, error) {
		return trust.VerifierSets{Sets: kept.Docs[after:min(int(after)+64, len(kept.Docs))]}, nil
	}
	r.Follow(t.Context(), kept.Floor(72), paged)
	require.Equal(t, kept.Hash[71], r.Current().Hash, log.String())
	require.NotContains(t, log.String(), "cannot load")
}

// fullDisk creates no file.
type fullDisk struct{ disk.OS }

func (fullDisk) Create(string) (disk.File, error) { return nil, syscall.ENOSPC }

// TestStoreSetBeforeUse: a set that cannot be stored is not used.
func TestStoreSetBeforeUse(t *testing.T) {
	t.Parallel()
	c := agenttest.NewChain(t, agenttest.NewQuiet(t))
	r, _ := opened(c, t.TempDir(), c.Bundle(0))
	r.state.FS = fullDisk{}
	r.Follow(t.Context(), c.Floor(1), c.Source)
	require.Zero(t, r.Current().Doc.Version)
	r.state.FS = disk.OS{}
	_, err := r.Newest(t.Context(), c.Source)
	require.NoError(t, err)
	require.Equal(t, int64(1), r.Current().Doc.Version)
}

// TestTornSetPutAside: an unreadable set is put aside and loaded again.
func TestTornSetPutAside(t *testing.T) {
	t.Parallel()
	c := agenttest.NewChain(t, agenttest.NewQuiet(t))
	dir := t.TempDir()
	r, _ := opened(c, dir, c.Bundle(0))
	r.Follow(t.Context(), c.Floor(1), c.Source)
	path := r.state.File(setFile)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, torn := range []string{string(text[:len(text)/2]), strings.Replace(string(text), c.Hash[0], c.Hash[0][1:]+"0", 1)} {
		require.NoError(t, os.WriteFile(path, []byte(torn), 0o600))
		again, log := opened(c, dir, c.Bundle(0))
		require.Zero(t, again.Current().Doc.Version)
		require.Contains(t, log.String(), "set aside")
		again.Follow(t.Context(), c.Floor(1), c.Source)
		require.Equal(t, int64(1), again.Current().Doc.Version)
	}
}

// TestFollowRetries after a failure, and not at each poll.
func TestFollowRetries(t *testing.T) {
	t.Parallel()
	c := agenttest.NewChain(t, agenttest.NewQuiet(t))
	r, _ := opened(c, t.TempDir(), c.Bundle(0))
	now := time.Now()
	r.Clock = &Clock{local: func() time.Time { return now }}
	r.retry = wait.Backoff{Range: wait.Range{Min: time.Minute, Max: time.Hour}}
	asked := 0
	away := func(context.Context, int64) (trust.VerifierSets, error) {
		asked++
		return trust.VerifierSets{}, errors.New("away")
	}
	for range 5 {
		r.Follow(t.Context(), c.Floor(1), away)
	}
	require.Equal(t, 1, asked)
	now = now.Add(time.Hour)
	r.Follow(t.Context(), c.Floor(1), c.Source)
	require.Equal(t, int64(1), r.Current().Doc.Version)
}
