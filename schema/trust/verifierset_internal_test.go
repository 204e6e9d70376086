package trust

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

const testEnv = "test"

// key is a deterministic key of a test.
type key struct {
	id      string
	private ed25519.PrivateKey
}

func signerKey(id string) key {
	return key{id, ed25519.NewKeyFromSeed(bytes.Repeat([]byte(id[:1]), ed25519.SeedSize))}
}

func (k key) KeyID() (string, error) { return k.id, nil }
func (k key) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(k.private, data), nil
}
func (k key) public() ed25519.PublicKey { return k.private.Public().(ed25519.PublicKey) }
func (k key) trusted() []VerifierKey {
	return []VerifierKey{{State: KeyActive, KeyID: k.id, Public: k.public()}}
}
func (k key) entry(state KeyState) VerifierKey {
	return VerifierKey{KeyID: k.id, Public: k.public(), State: state}
}

func sign(t *testing.T, payloadType string, body []byte, by ...dsse.Signer) json.RawMessage {
	t.Helper()
	s, err := dsse.NewEnvelopeSigner(by...)
	require.NoError(t, err)
	e, err := s.SignPayload(t.Context(), payloadType, body)
	require.NoError(t, err)
	raw, err := json.Marshal(e)
	require.NoError(t, err)
	return raw
}

func signDoc(t *testing.T, doc VerifierSetDoc, by ...dsse.Signer) json.RawMessage {
	t.Helper()
	body, err := json.Marshal(doc)
	require.NoError(t, err)
	return sign(t, VerifierSetPayloadType, body, by...)
}

// doc is version 1 of a set with one active key.
func doc(active key) VerifierSetDoc {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return VerifierSetDoc{V: 1, Env: testEnv, Version: 1, Keys: VerifierKeys{active.entry(KeyActive)},
		IssuedAt: now, ExpiresAt: now.Add(time.Hour)}
}

func requireRefusal(t *testing.T, err error, reason string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "%v", err)
	require.Equal(t, reason, schema.AsError(err).Reason, "%v", err)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	a, b := signerKey("a"), signerKey("b")
	good := sign(t, "type", []byte("body"), a, b)
	body, signers, err := OpenEnvelope("type", good, append(b.trusted(), a.trusted()...))
	require.NoError(t, err)
	require.Equal(t, "body", string(body))
	require.ElementsMatch(t, []string{"a", "b"}, signers)
	_, signers, err = OpenEnvelope("type", good, b.trusted())
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, signers)

	impostor := key{"a", signerKey("c").private}
	for name, row := range map[string]struct {
		envelope json.RawMessage
		keys     []VerifierKey
		reason   string
	}{
		"another type":      {sign(t, "other", []byte("body"), a), a.trusted(), ReasonPayloadType},
		"another key":       {good, signerKey("c").trusted(), ReasonSignature},
		"another key's ID":  {sign(t, "type", []byte("body"), impostor), a.trusted(), ReasonSignature},
		"no key":            {good, nil, ReasonSignature},
		"a key of no bytes": {good, []VerifierKey{{KeyID: "a"}}, ReasonSignature},
		"no signature":      {json.RawMessage(`{"payload":"","payloadType":"type","signatures":[]}`), a.trusted(), ReasonEnvelope},
		"five signatures":   {sign(t, "type", []byte("body"), a, a, a, a, a), a.trusted(), ReasonEnvelope},
		"repeated field":    {json.RawMessage(`{"payload":"","payload":"","payloadType":"type","signatures":[]}`), a.trusted(), ReasonEnvelope},
		"not JSON":          {json.RawMessage(`{`), a.trusted(), ReasonEnvelope},
		"large":             {bytes.Repeat([]byte(" "), MaxDocumentBytes+1), a.trusted(), ReasonTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := OpenEnvelope("type", row.envelope, row.keys)
			requireRefusal(t, err, row.reason)
		})
	}
}

func TestOpenVerifierSet(t *testing.T) {
	t.Parallel()
	root, a, b := signerKey("root"), signerKey("a"), signerKey("b")
	document := signDoc(t, doc(a), root, a)
	set, signers, err := OpenVerifierSet(testEnv, document, root.trusted())
	require.NoError(t, err)
	require.Equal(t, []string{"root"}, signers)
	require.Equal(t, a.trusted()[0], set.Active())
	parsed, err := ParseVerifierSet(document)
	require.NoError(t, err)
	require.Equal(t, set, parsed)
	require.True(t, set.Matches(set.Stored()))
	for _, change := range []func(*StoredSet){
		func(s *StoredSet) { s.Version++ }, func(s *StoredSet) { s.Epoch++ },
		func(s *StoredSet) { s.Hash = "x" }, func(s *StoredSet) { s.PrevHash = "x" },
	} {
		stored := set.Stored()
		change(&stored)
		require.False(t, set.Matches(stored))
	}

	for name, row := range map[string]struct {
		change func(*VerifierSetDoc)
		reason string
	}{
		"another format":      {func(d *VerifierSetDoc) { d.V = 2 }, ReasonVersion},
		"another environment": {func(d *VerifierSetDoc) { d.Env = "prod" }, ReasonEnvironment},
		"no version":          {func(d *VerifierSetDoc) { d.Version = 0 }, ReasonBody},
		"a negative epoch":    {func(d *VerifierSetDoc) { d.Epoch = -1 }, ReasonBody},
		"no expiry":           {func(d *VerifierSetDoc) { d.ExpiresAt = time.Time{} }, ReasonBody},
		"no key":              {func(d *VerifierSetDoc) { d.Keys = nil }, ReasonBody},
		"no active key":       {func(d *VerifierSetDoc) { d.Keys[0].State = KeyGrace }, ReasonBody},
		"two active keys":     {func(d *VerifierSetDoc) { d.Keys = append(d.Keys, b.entry(KeyActive)) }, ReasonBody},
		"an unknown state":    {func(d *VerifierSetDoc) { d.Keys = append(d.Keys, b.entry("root")) }, ReasonBody},
		"a repeated ID": {func(d *VerifierSetDoc) {
			d.Keys = append(d.Keys, key{"a", b.private}.entry(KeyGrace))
		}, ReasonBody},
		"a repeated key": {func(d *VerifierSetDoc) {
			d.Keys = append(d.Keys, key{"b", a.private}.entry(KeyGrace))
		}, ReasonBody},
		"a root key in another state": {func(d *VerifierSetDoc) { d.Roots = VerifierKeys{b.entry(KeyActive)} }, ReasonBody},
		"three root keys": {func(d *VerifierSetDoc) {
			d.Roots = VerifierKeys{root.entry(KeyRoot), a.entry(KeyRoot), b.entry(KeyRoot)}
		}, ReasonBody},
		"a short key":    {func(d *VerifierSetDoc) { d.Keys[0].Public = make([]byte, 3) }, ReasonBody},
		"a key of no ID": {func(d *VerifierSetDoc) { d.Keys[0].KeyID = "" }, ReasonBody},
		"too many keys": {func(d *VerifierSetDoc) {
			for id := byte('b'); len(d.Keys) <= MaxSetKeys; id++ {
				d.Keys = append(d.Keys, signerKey(string(id)).entry(KeyRevoked))
			}
		}, ReasonBody},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := doc(a)
			row.change(&d)
			_, _, err := OpenVerifierSet(testEnv, signDoc(t, d, root, a), root.trusted())
			requireRefusal(t, err, row.reason)
		})
	}
	_, _, err = OpenVerifierSet(testEnv, signDoc(t, doc(a), a), root.trusted())
	requireRefusal(t, err, ReasonSignature)
	_, _, err = OpenVerifierSet(testEnv, sign(t, VerifierSetPayloadType, []byte(`{"v":1,"v":1}`), root), root.trusted())
	requireRefusal(t, err, ReasonBody)
	encoded := base64.StdEncoding.EncodeToString(a.public())
	body, err := json.Marshal(doc(a))
	require.NoError(t, err)
	noBase64 := bytes.Replace(body, []byte(encoded), []byte("!"+encoded[1:]), 1)
	require.NotEqual(t, body, noBase64)
	_, _, err = OpenVerifierSet(testEnv, sign(t, VerifierSetPayloadType, noBase64, root), root.trusted())
	requireRefusal(t, err, ReasonBody)
}

// following is the second set of a chain, with another active key.
func following(first VerifierSet, active key, change func(*VerifierSetDoc)) VerifierSetDoc {
	d := doc(active)
	d.Version, d.PrevHash, d.Epoch = 2, first.Hash, first.Doc.Epoch
	if change != nil {
		change(&d)
	}
	return d
}

func TestNext(t *testing.T) {
	t.Parallel()
	root, a, b, outsider := signerKey("root"), signerKey("a"), signerKey("b"), signerKey("outsider")
	d := doc(a)
	d.Epoch = 1
	first, _, err := OpenVerifierSet(testEnv, signDoc(t, d, root, a), root.trusted())
	require.NoError(t, err)
	revoked, _, err := OpenVerifierSet(testEnv, signDoc(t, following(first, b, func(d *VerifierSetDoc) {
		gone := a.trusted()[0]
		gone.State = KeyRevoked
		d.Epoch, d.Keys = 2, append(d.Keys, gone)
	}), root), root.trusted())
	require.NoError(t, err)
	fork := d
	fork.ExpiresAt = fork.ExpiresAt.Add(time.Hour)

	for name, row := range map[string]struct {
		from     VerifierSet
		document json.RawMessage
		reason   string // "" if accepted
	}{
		"the first":     {VerifierSet{}, signDoc(t, d, root, a), ReasonSignature}, // no predecessor's key signed it
		"the successor": {first, signDoc(t, following(first, b, nil), root, a), ""},
		"an expired successor": {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.ExpiresAt = time.Unix(1, 0) }),
			root, a), ""},
		"without the root":           {first, signDoc(t, following(first, b, nil), a), ReasonSignature},
		"without the active key":     {first, signDoc(t, following(first, b, nil), root), ReasonSignature},
		"by its own active key only": {first, signDoc(t, following(first, b, nil), root, b), ReasonSignature},
		"by another root":            {first, signDoc(t, following(first, b, nil), key{"root", outsider.private}, a), ReasonSignature},
		"a gap":                      {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.Version = 3 }), root, a), ReasonSetGap},
		"another predecessor":        {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.PrevHash = "x" }), root, a), ReasonSetFork},
		"a fork":                     {first, signDoc(t, fork, root, a), ReasonSetFork},
		"its own version again":      {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.Version = 1 }), root, a), ReasonSetFork},
		"a lower epoch":              {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.Epoch = 0 }), root, a), ReasonSetOld},
		"a higher epoch": {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.Epoch, d.Version, d.PrevHash = 2, 9, "" }),
			root), ""},
		"a higher epoch without the root": {first, signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.Epoch = 2 }), a), ReasonSignature},
		"a revoked key active":            {revoked, signDoc(t, following(first, a, func(d *VerifierSetDoc) { d.Epoch = 3 }), root, a), ReasonKeyRevoked},
		"a revoked key staged under another ID": {revoked, signDoc(t, following(revoked, b, func(d *VerifierSetDoc) {
			again := a.trusted()[0]
			again.KeyID, again.State = "again", KeyStaged
			d.Version, d.Keys = 3, append(d.Keys, again)
		}), root, b), ReasonKeyRevoked},
		"a revoked key's ID for another key": {revoked, signDoc(t, following(revoked, b, func(d *VerifierSetDoc) {
			d.Version, d.Keys = 3, append(d.Keys, key{"a", outsider.private}.entry(KeyStaged))
		}), root, b), ReasonKeyRevoked},
		"a revoked key left out":            {revoked, signDoc(t, following(revoked, b, func(d *VerifierSetDoc) { d.Version = 3 }), root, b), ""},
		"an older set with the revoked key": {revoked, first.Document, ReasonSetOld},
		"itself":                            {first, first.Document, ""},
		"a bundle's own set":                {Bundled(a.trusted(), first.Ref()), first.Document, ""},
		"a bundle's successor":              {Bundled(a.trusted(), first.Ref()), signDoc(t, following(first, b, nil), root, a), ""},
		"a higher epoch than a bundle's unknown one": {Bundled(a.trusted(), first.Ref()),
			signDoc(t, following(first, b, func(d *VerifierSetDoc) { d.Epoch, d.Version = 2, 9 }), root, a), ReasonSetGap},
		"an older version than a bundle's": {Bundled(a.trusted(), VerifierSetRef{Version: 2, Hash: "x"}), first.Document, ReasonSetOld},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := row.from.Next(testEnv, root.trusted(), row.document)
			if row.reason != "" {
				requireRefusal(t, err, row.reason)
				return
			}
			require.NoError(t, err)
			require.JSONEq(t, string(row.document), string(n.Document))
		})
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for state, want := range map[KeyState]bool{KeyActive: true, KeyGrace: true, KeyStaged: false, KeyRevoked: false} {
		s := Bundled(VerifierKeys{{State: state, KeyID: "k"}}, VerifierSetRef{})
		require.Equal(t, want, len(s.Accepted()) == 1, state)
	}
	s := VerifierSet{Doc: VerifierSetDoc{ExpiresAt: now}}
	require.False(t, s.Expired(now))
	require.True(t, s.Expired(now.Add(time.Second)))
	require.False(t, VerifierSet{}.Expired(now))
}
