package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// chain is a server's verifier sets, each signed by the root and by the active
// key of the one before.
type chain struct {
	t    *testing.T
	f    *fakeAPI
	keys []ed25519.PrivateKey // active, by version
	docs []json.RawMessage
	set  []trust.VerifierSetDoc
	hash []string
}

func newChain(t *testing.T, f *fakeAPI) *chain {
	t.Helper()
	c := &chain{t: t, f: f}
	c.add(f.signer, nil)
	f.shown = func(after int64) []json.RawMessage { return c.docs[min(int(after), len(c.docs)):] }
	f.name = func() string { return c.name(len(c.docs)) }
	return c
}

func keyName(key ed25519.PrivateKey) string {
	return base64.RawURLEncoding.EncodeToString(publicOf(key))[:8]
}

// doc is the next set with an active key, as change leaves it.
func (c *chain) doc(active ed25519.PrivateKey, change func(*trust.VerifierSetDoc)) trust.VerifierSetDoc {
	d := trust.VerifierSetDoc{
		V: 1, Env: c.f.id.Env, Version: int64(len(c.docs) + 1), IssuedAt: time.Now().UTC(), ExpiresAt: time.Now().UTC().Add(time.Hour),
		Keys: []trust.VerifierSetKey{{KeyID: keyName(active), State: trust.KeyActive, Public: base64.StdEncoding.EncodeToString(publicOf(active))}},
	}
	if active.Equal(c.f.signer) {
		d.Keys[0].KeyID = "k1"
	}
	if n := len(c.hash); n > 0 {
		d.PrevHash = c.hash[n-1]
	}
	if change != nil {
		change(&d)
	}
	return d
}

// sign signs a set with the root and the active key of the newest.
func (c *chain) sign(d trust.VerifierSetDoc) json.RawMessage {
	by := c.f.signer
	if n := len(c.keys); n > 0 {
		by = c.keys[n-1]
	}
	return signWith(c.t, trust.VerifierSetPayloadType, d, edSigner{c.f.root, ""}, edSigner{by, ""})
}

// add puts a set on the chain.
func (c *chain) add(active ed25519.PrivateKey, change func(*trust.VerifierSetDoc)) {
	d := c.doc(active, change)
	c.push(active, d, c.sign(d))
}

func (c *chain) push(active ed25519.PrivateKey, d trust.VerifierSetDoc, document json.RawMessage) {
	body, err := json.Marshal(d)
	require.NoError(c.t, err)
	c.keys, c.docs = append(c.keys, active), append(c.docs, document)
	c.set, c.hash = append(c.set, d), append(c.hash, digestOf(body))
}

func (c *chain) floor(version int) trust.VerifierSetRef {
	return trust.VerifierSetRef{Version: int64(version), Hash: c.hash[version-1]}
}
func (c *chain) name(version int) string { return c.floor(version).String() }

// source hands the chain's sets out.
func (c *chain) source(_ context.Context, after int64) (trust.VerifierSets, error) {
	return trust.VerifierSets{Sets: c.docs[min(int(after), len(c.docs)):]}, nil
}

// opened is the trust of a node with a bundle, over a state folder.
func (c *chain) opened(dir string, bundle trust.TaskTrust) (*setStore, *logBuffer) {
	c.t.Helper()
	log := &logBuffer{}
	r, err := openTrust(stateDir{path: dir}, c.f.id.Env, bundle, &trustedClock{local: time.Now}, quickTiming(), newLogTo(log))
	require.NoError(c.t, err)
	return r, log
}

func (c *chain) bundle(floor int) trust.TaskTrust {
	t := c.f.trust()
	if floor > 0 {
		t.Floor = c.floor(floor)
	}
	return t
}

// TestSetsAreWalked: a node that was away takes one set after the other, over
// expired ones, stores each and never goes back, whatever bundle it has.
func TestSetsAreWalked(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	c := newChain(t, f)
	c.add(newKey(t), func(d *trust.VerifierSetDoc) { d.ExpiresAt = time.Now().Add(-time.Hour) })
	c.add(newKey(t), nil)
	for name, floor := range map[string]int{"from a bundle without a set": 0, "from the first": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r, _ := c.opened(dir, c.bundle(floor))
			r.follow(t.Context(), c.floor(3), c.source)
			require.Equal(t, c.hash[2], r.current().hash)
			for _, older := range []int{0, 1} {
				again, _ := c.opened(dir, c.bundle(older))
				require.Equal(t, c.hash[2], again.current().hash, "a restart goes back")
				require.NotNil(t, again.current().document)
			}
		})
	}
}

// TestReissuedBundle wins where it is of a newer set, and is remembered.
func TestReissuedBundle(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	c := newChain(t, f)
	next := newKey(t)
	c.add(next, nil)
	dir := t.TempDir()
	r, _ := c.opened(dir, c.bundle(1))
	newer := trust.TaskTrust{Roots: f.trust().Roots, Floor: c.floor(2),
		Keys: trust.VerifierSet{{State: trust.KeyActive, KeyID: keyName(next), Public: publicOf(next)}}}
	r.configure(newer)
	require.Equal(t, int64(2), r.current().version)
	back, _ := c.opened(dir, c.bundle(1))
	require.Equal(t, int64(2), back.current().version, "an older bundle wins after a restart")
	back.follow(t.Context(), c.floor(2), c.source)
	require.False(t, back.current().expires.IsZero(), "the dates of a bundle's set are learned")
}

// TestBadSets is B34: none of these is taken, each is said, the set in use stays.
func TestBadSets(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]struct {
		reason string
		shown  func(c *chain) (doc json.RawMessage, told trust.VerifierSetRef)
	}{
		"served old": {refusedSetOld, func(c *chain) (json.RawMessage, trust.VerifierSetRef) { return c.docs[0], c.floor(1) }},
		"gap": {refusedSetGap, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.doc(newKey(c.t), func(d *trust.VerifierSetDoc) { d.Version++ })
			return c.sign(d), trust.VerifierSetRef{Version: d.Version, Hash: c.hash[0]}
		}},
		"fork of the set in use": {refusedSetFork, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.doc(newKey(c.t), func(d *trust.VerifierSetDoc) { d.Version, d.PrevHash = 2, c.hash[0] })
			return signWith(c.t, trust.VerifierSetPayloadType, d, edSigner{c.f.root, ""}, edSigner{c.keys[0], ""}), trust.VerifierSetRef{Version: 2, Hash: c.hash[0]}
		}},
		"successor of a fork": {refusedSetFork, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.doc(newKey(c.t), func(d *trust.VerifierSetDoc) { d.PrevHash = c.hash[0] })
			return c.sign(d), trust.VerifierSetRef{Version: 3, Hash: c.hash[0]}
		}},
		"withheld": {refusedSetHeld, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			return nil, trust.VerifierSetRef{Version: 3, Hash: c.hash[0]}
		}},
		"without the root": {ofSet + refusedSignature, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.doc(newKey(c.t), nil)
			return signWith(c.t, trust.VerifierSetPayloadType, d, edSigner{c.keys[1], ""}), trust.VerifierSetRef{Version: 3, Hash: c.hash[0]}
		}},
		"without the active key": {ofSet + refusedSignature, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.doc(newKey(c.t), nil)
			return signWith(c.t, trust.VerifierSetPayloadType, d, edSigner{c.f.root, ""}), trust.VerifierSetRef{Version: 3, Hash: c.hash[0]}
		}},
		"by the key before the active one": {ofSet + refusedSignature, func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
			d := c.doc(newKey(c.t), nil)
			return signWith(c.t, trust.VerifierSetPayloadType, d, edSigner{c.f.root, ""}, edSigner{c.keys[0], ""}), trust.VerifierSetRef{Version: 3, Hash: c.hash[0]}
		}},
		"other environment": {ofSet + refusedEnv, changedSet(func(d *trust.VerifierSetDoc) { d.Env = "prod" })},
		"no end":            {ofSet + refusedBody, changedSet(func(d *trust.VerifierSetDoc) { d.ExpiresAt = time.Time{} })},
		"no active key":     {ofSet + refusedBody, changedSet(func(d *trust.VerifierSetDoc) { d.Keys[0].State = trust.KeyGrace })},
		"a key twice":       {ofSet + refusedBody, changedSet(func(d *trust.VerifierSetDoc) { d.Keys = append(d.Keys, d.Keys[0]) })},
		"a key of no state": {ofSet + refusedBody, changedSet(func(d *trust.VerifierSetDoc) {
			d.Keys = append(d.Keys, trust.VerifierSetKey{KeyID: "x", Public: base64.StdEncoding.EncodeToString(make([]byte, 32)), State: "root"})
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChain(t, newQuietAPI(t))
			c.add(newKey(t), nil)
			r, log := c.opened(t.TempDir(), c.bundle(1))
			r.follow(t.Context(), c.floor(2), c.source)
			require.Equal(t, int64(2), r.current().version)
			doc, told := bad.shown(c)
			asked := 0
			r.follow(t.Context(), told, func(context.Context, int64) (trust.VerifierSets, error) {
				asked++
				if doc == nil {
					return trust.VerifierSets{}, nil
				}
				return trust.VerifierSets{Sets: []json.RawMessage{doc}}, nil
			})
			require.Equal(t, 1, asked)
			require.Equal(t, c.hash[1], r.current().hash)
			require.Contains(t, log.String(), `"reason":"`+bad.reason+`"`)
		})
	}
}

func changedSet(change func(*trust.VerifierSetDoc)) func(*chain) (json.RawMessage, trust.VerifierSetRef) {
	return func(c *chain) (json.RawMessage, trust.VerifierSetRef) {
		return c.sign(c.doc(newKey(c.t), change)), trust.VerifierSetRef{Version: 3, Hash: c.hash[0]}
	}
}

// TestHigherEpochIsTheWayOut of a mistake: signed by the root alone, of any
// version.
func TestHigherEpochIsTheWayOut(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]int64{"lower": 1, "equal": 2, "higher": 9} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChain(t, newQuietAPI(t))
			c.add(newKey(t), nil)
			dir := t.TempDir()
			r, _ := c.opened(dir, c.bundle(1))
			r.follow(t.Context(), c.floor(2), c.source)
			d := c.doc(newKey(t), func(d *trust.VerifierSetDoc) { d.Version, d.Epoch, d.PrevHash = version, 1, "" })
			body, err := json.Marshal(d)
			require.NoError(t, err)
			doc := signWith(t, trust.VerifierSetPayloadType, d, edSigner{c.f.root, ""})
			r.follow(t.Context(), trust.VerifierSetRef{Version: version, Hash: digestOf(body)}, func(context.Context, int64) (trust.VerifierSets, error) {
				return trust.VerifierSets{Sets: []json.RawMessage{doc}}, nil
			})
			require.Equal(t, digestOf(body), r.current().hash)
			r.follow(t.Context(), c.floor(2), c.source)
			require.Equal(t, digestOf(body), r.current().hash, "the lower epoch comes back")
			again, _ := c.opened(dir, c.bundle(1))
			require.Equal(t, version, again.current().version)
		})
	}
}

// TestSetIsStoredBeforeItIsUsed: what the disk does not take is not used.
func TestSetIsStoredBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	c := newChain(t, newQuietAPI(t))
	r, _ := c.opened(t.TempDir(), c.bundle(0))
	r.state.disk.create = func(string, os.FileMode) (outFile, error) { return nil, syscall.ENOSPC }
	r.follow(t.Context(), c.floor(1), c.source)
	require.Zero(t, r.current().version)
	r.state.disk.create = nil
	_, err := r.newest(t.Context(), c.source)
	require.NoError(t, err)
	require.Equal(t, int64(1), r.current().version)
}

// TestTornSetIsPutAside and walked again.
func TestTornSetIsPutAside(t *testing.T) {
	t.Parallel()
	c := newChain(t, newQuietAPI(t))
	dir := t.TempDir()
	r, _ := c.opened(dir, c.bundle(0))
	r.follow(t.Context(), c.floor(1), c.source)
	path := r.state.file(setFile)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, torn := range []string{string(text[:len(text)/2]), strings.Replace(string(text), c.hash[0], c.hash[0][1:]+"0", 1)} {
		require.NoError(t, os.WriteFile(path, []byte(torn), privateFile))
		again, log := c.opened(dir, c.bundle(0))
		require.Zero(t, again.current().version)
		require.Contains(t, log.String(), "put aside")
		again.follow(t.Context(), c.floor(1), c.source)
		require.Equal(t, int64(1), again.current().version)
	}
}

// TestWalkIsTriedAgain after a failure, and not at each poll.
func TestWalkIsTriedAgain(t *testing.T) {
	t.Parallel()
	c := newChain(t, newQuietAPI(t))
	r, _ := c.opened(t.TempDir(), c.bundle(0))
	now := time.Now()
	r.clock = &trustedClock{local: func() time.Time { return now }}
	r.wait = backoff{min: time.Minute, max: time.Hour}
	asked := 0
	away := func(context.Context, int64) (trust.VerifierSets, error) {
		asked++
		return trust.VerifierSets{}, errors.New("away")
	}
	for range 5 {
		r.follow(t.Context(), c.floor(1), away)
	}
	require.Equal(t, 1, asked)
	now = now.Add(time.Hour)
	r.follow(t.Context(), c.floor(1), c.source)
	require.Equal(t, int64(1), r.current().version)
}

// TestKeyStates: what verifies is active, or in grace until its time.
func TestKeyStates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		state       trust.KeyState
		from, until time.Time
		want        bool
	}{
		{trust.KeyActive, time.Time{}, time.Time{}, true},
		{trust.KeyActive, now.Add(time.Hour), time.Time{}, false},
		{trust.KeyGrace, time.Time{}, time.Time{}, true},
		{trust.KeyGrace, time.Time{}, now.Add(time.Second), true},
		{trust.KeyGrace, time.Time{}, now.Add(-time.Second), false},
		{trust.KeyStaged, time.Time{}, time.Time{}, false},
		{trust.KeyRevoked, time.Time{}, now.Add(time.Hour), false},
	} {
		k := trustKey{trust.VerifierKey{State: c.state}, c.from, c.until}
		require.Equal(t, c.want, k.counts(now), "%v", c)
	}
}

// TestRotation over the wire: the signer changes, the node follows, tasks of the
// old key are taken in grace and refused once it is revoked; agent.update_trust
// says which set is in use.
func TestRotation(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := newChain(t, f)
	a := start(t, f.config(), Deps{})
	seq := int64(0)
	do := func(by ed25519.PrivateKey, least int64) task.Result {
		t.Helper()
		seq++
		p := f.payload(task.UpdateTrust, seq, nil)
		p.MinSetVersion = least
		o := f.offerOf(p, 1)
		o.Envelope = signAs(t, edSigner{by, ""}, task.PayloadType, f.body(p))
		f.offers <- o
		return f.result(p.TaskID)
	}
	r := do(f.signer, 1)
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	require.Equal(t, trust.TrustResult{SetVersion: 1, SetHash: c.hash[0], CABundleFingerprint: trust.Fingerprint(string(f.server.pem)),
		NodeCertCABundleFingerprint: trust.Fingerprint(string(f.nodes.pem))}, decode[trust.TrustResult](t, r.Output))

	old, next := f.signer, newKey(t)
	was := func(state trust.KeyState) func(*trust.VerifierSetDoc) {
		return func(d *trust.VerifierSetDoc) {
			d.Keys = append(d.Keys, trust.VerifierSetKey{KeyID: "k1", Public: base64.StdEncoding.EncodeToString(publicOf(old)), State: state})
		}
	}
	for i, state := range []trust.KeyState{trust.KeyGrace, trust.KeyRevoked} {
		f.note(func() { c.add(next, was(state)); f.keySigner = next })
		version := int64(i + 2)
		require.Equal(t, task.Succeeded, do(next, version).Status)
		require.Equal(t, version, a.trust.current().version)
		r := do(old, 0)
		if state == trust.KeyGrace {
			require.Equal(t, task.Succeeded, r.Status, r.Message)
			continue
		}
		require.True(t, strings.HasPrefix(r.Message, refusedSignature), r.Message)
	}
	s, err := ReadStatus(t.Context(), a.conf)
	require.NoError(t, err)
	require.Equal(t, &SetStatus{Version: 3, Hash: c.hash[2], ExpiresAt: c.set[2].ExpiresAt}, s.VerifierSet)
}
