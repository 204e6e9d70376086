package verify

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Reasons of verifier sets and of tasks that they judge.
const (
	refusedSetOld     = "set_old"
	refusedSetGap     = "set_gap"
	refusedSetFork    = "set_fork"
	refusedSetExpired = "set_expired"
	refusedSetBehind  = "set_too_old"
	refusedSetHeld    = "set_withheld"
)

// maxSetKeys bounds the keys of a set document: it also lists revoked ones.
const maxSetKeys = 16

// setDocument is the kind of a verifier set.
func setDocument() document { return document{trust.VerifierSetPayloadType, ofSet} }

// trustKey is a key of a set and when it may be used.
type trustKey struct {
	trust.VerifierKey
	from, until time.Time // zero: open
}

// counts reports whether signatures of the key count at a time of the server.
func (k trustKey) counts(at time.Time) bool {
	return k.State.Verifies() && !at.Add(notBeforeSkew).Before(k.from) && (k.until.IsZero() || !at.After(k.until))
}

// Set is a set of keys that tasks are judged with.
type Set struct {
	Version int64  // 0: the keys of a bundle that names no set
	Hash    string // hex SHA-256 of the signed body, "" for version 0
	keys    []trustKey

	// The rest is not known of a set whose keys are a bundle's.
	document json.RawMessage
	prevHash string
	epoch    int64
	expires  time.Time
}

// accepting are the keys whose signatures count at a time of the server, or
// ever when it is zero.
func (s Set) accepting(at time.Time) []trust.VerifierKey {
	var out []trust.VerifierKey
	for _, k := range s.keys {
		if k.State.Verifies() && (at.IsZero() || k.counts(at)) {
			out = append(out, k.VerifierKey)
		}
	}
	return out
}

// active is the key that signs the next set beside a root.
func (s Set) active() []trust.VerifierKey {
	for _, k := range s.keys {
		if k.State == trust.KeyActive {
			return []trust.VerifierKey{k.VerifierKey}
		}
	}
	return nil
}

// expired reports whether the set's time is over. A bundle's keys have none.
func (s Set) expired(at time.Time) bool { return !s.expires.IsZero() && at.After(s.expires) }

// bundled is the set of a bundle's keys.
func bundled(keys trust.VerifierSet, floor trust.VerifierSetRef) Set {
	s := Set{Version: floor.Version, Hash: floor.Hash}
	for _, k := range keys {
		s.keys = append(s.keys, trustKey{VerifierKey: k})
	}
	return s
}

// parseSet reads the signed body of a set document.
func parseSet(env string, raw []byte, document json.RawMessage) (Set, error) {
	bad := setDocument().refuse
	var d trust.VerifierSetDoc
	if err := schema.DecodeStrict(raw, wire.MaxBodyBytes, &d); err != nil {
		return Set{}, bad(refusedBody, "the signed body is not a verifier set: %v", err)
	}
	switch {
	case d.V != payloadVersion:
		return Set{}, bad(refusedVersion, "version %d of the set format is not known here", d.V)
	case d.Env != env:
		return Set{}, bad(refusedEnv, "the verifier set is for another environment")
	case d.Version < 1 || d.Epoch < 0 || d.ExpiresAt.IsZero() || len(d.Keys) > maxSetKeys:
		return Set{}, bad(refusedBody, "the verifier set has no version or end, or more than %d keys", maxSetKeys)
	}
	s := Set{
		Version: d.Version, Hash: text.SHA256Hex(raw), document: document,
		prevHash: d.PrevHash, epoch: d.Epoch, expires: d.ExpiresAt,
	}
	var err error
	s.keys, err = parseSetKeys(d.Keys)
	return s, err
}

// parseSetKeys wants ids and keys once each and exactly one active key.
func parseSetKeys(list []trust.VerifierSetKey) ([]trustKey, error) {
	var keys []trustKey
	ids, publics, active := map[string]bool{}, map[string]bool{}, 0
	for _, k := range list {
		public, err := base64.StdEncoding.Strict().DecodeString(k.Public)
		known := k.State.Verifies() || k.State == trust.KeyStaged || k.State == trust.KeyRevoked
		if err != nil || len(public) != ed25519.PublicKeySize || !known || k.KeyID == "" || ids[k.KeyID] || publics[k.Public] {
			return nil, setDocument().refuse(refusedBody, "key %q of the verifier set is malformed or there twice", text.Truncate(k.KeyID))
		}
		ids[k.KeyID], publics[k.Public] = true, true
		if k.State == trust.KeyActive {
			active++
		}
		keys = append(keys, trustKey{
			VerifierKey: trust.VerifierKey{State: k.State, KeyID: k.KeyID, Public: public}, from: k.SignFrom, until: k.AcceptUntil,
		})
	}
	if active != 1 {
		return nil, setDocument().refuse(refusedBody, "the verifier set has %d active keys", active)
	}
	return keys, nil
}

// next returns the set of a document when it may follow s: it is signed by a
// root, and it is
//
//   - the successor: the next version, of no lower epoch, naming the hash of s,
//     signed by the active key of s too;
//   - or of a higher epoch, whatever its version: the way out of a mistake;
//   - or s itself, whose keys came from a bundle: then its dates and epoch are
//     learned. Before that only a successor is taken.
//
// Its end is not looked at: a node that was away walks over expired ones.
func (s Set) next(env string, roots []trust.VerifierKey, envelope json.RawMessage) (Set, error) {
	raw, _, err := setDocument().open(envelope, roots)
	if err != nil {
		return Set{}, err
	}
	n, err := parseSet(env, raw, envelope)
	if err != nil {
		return Set{}, err
	}
	known := s.document != nil // else its epoch is not
	switch {
	case n.Version == s.Version && n.Hash == s.Hash, known && n.epoch > s.epoch:
		return n, nil
	case n.Version < s.Version, known && n.epoch < s.epoch:
		return Set{}, refuse(refusedSetOld, "verifier set %d of epoch %d is older than set %d of epoch %d", n.Version, n.epoch, s.Version, s.epoch)
	case n.Version == s.Version:
		return Set{}, refuse(refusedSetFork, "there are two verifier sets %d: %s is held, %s is shown", s.Version, s.Hash, n.Hash)
	case n.Version > s.Version+1:
		return Set{}, refuse(refusedSetGap, "verifier set %d does not follow %d: some are missing", n.Version, s.Version)
	case n.prevHash != s.Hash:
		return Set{}, refuse(refusedSetFork, "verifier set %d follows another set %d than the one held", n.Version, s.Version)
	}
	if _, _, err := setDocument().open(envelope, s.active()); err != nil {
		return Set{}, err
	}
	return n, nil
}

// storedSet is what the state folder keeps of the set in use.
type storedSet struct {
	Version int64  `json:"version"`
	Hash    string `json:"hash"`
	// Document is the set's envelope; Keys are a bundle's in their text form
	// where there is none.
	Document json.RawMessage `json:"document,omitempty"`
	Keys     string          `json:"keys,omitempty"`
}

// stored is the set's stored form.
func (s Set) stored() storedSet {
	out := storedSet{Version: s.Version, Hash: s.Hash, Document: s.document}
	if s.document == nil {
		var keys trust.VerifierSet
		for _, k := range s.keys {
			keys = append(keys, k.VerifierKey)
		}
		out.Keys = keys.String()
	}
	return out
}

// held reads a stored set. Its signatures were verified before it was stored;
// that it is still the same, its hash tells.
func (f storedSet) held(env string) (Set, error) {
	if len(f.Document) == 0 {
		keys, err := trust.ParseVerifierSet(f.Keys)
		return bundled(keys, trust.VerifierSetRef{Version: f.Version, Hash: f.Hash}), err
	}
	var e dsse.Envelope
	if err := schema.DecodeStrict(f.Document, wire.MaxBodyBytes, &e); err != nil {
		return Set{}, err
	}
	raw, err := e.DecodeB64Payload()
	if err != nil {
		return Set{}, err
	}
	s, err := parseSet(env, raw, f.Document)
	if err == nil && (s.Version != f.Version || s.Hash != f.Hash) {
		err = refuse(refusedSetFork, "the stored verifier set is not the one that was stored")
	}
	return s, err
}
