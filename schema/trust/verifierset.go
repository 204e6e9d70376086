package trust

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Reasons for rejecting a verifier set as the next one.
const (
	ReasonSetOld  = "set_old"  // an older version or a lower epoch
	ReasonSetGap  = "set_gap"  // versions are missing in between
	ReasonSetFork = "set_fork" // two sets of one version
	// ReasonKeyRevoked is a set in which a key that is revoked in its predecessor is valid.
	ReasonKeyRevoked = "key_revoked"
)

const setFormat = 1

// MaxSetKeys is the largest number of keys in a set. Revoked keys stay in the list; the oldest
// ones are dropped if there are more.
const MaxSetKeys = 16

// VerifierSet is a parsed verifier set. Its zero value is the predecessor of
// version 1.
type VerifierSet struct {
	Doc  VerifierSetDoc `json:"doc"`
	Hash string         `json:"hash"` // hex SHA-256 of the signed body
	// Document is the DSSE envelope. It is nil for a set of which a bundle gave
	// only keys, version and hash; Doc then has nothing else.
	Document json.RawMessage `json:"document,omitempty"`
}

// Bundled returns the set whose keys, version and hash a bootstrap bundle names.
func Bundled(keys VerifierKeys, ref VerifierSetRef) VerifierSet {
	return VerifierSet{Doc: VerifierSetDoc{Version: ref.Version, Keys: keys}, Hash: ref.Hash}
}

// OpenVerifierSet parses a set's document after verifying that one of the root
// keys signed it and that it is for the environment. signers are the IDs of those
// root keys. Errors are KindInvalidRequest with a reason of this package.
func OpenVerifierSet(env string, document []byte, roots []VerifierKey) (set VerifierSet, signers []string, err error) {
	body, signers, err := OpenEnvelope(VerifierSetPayloadType, document, roots)
	if err != nil {
		return VerifierSet{}, nil, err
	}
	set, err = parseBody(body, document)
	if err == nil && set.Doc.Env != env {
		err = reject(ReasonEnvironment, "the verifier set is for environment %q", set.Doc.Env)
	}
	if err != nil {
		return VerifierSet{}, nil, err
	}
	return set, signers, nil
}

// ParseVerifierSet parses a set's document without verifying a signature. The
// caller must compare the hash with one that it trusts. Errors are those of
// OpenVerifierSet.
func ParseVerifierSet(document []byte) (VerifierSet, error) {
	e, err := parseEnvelope(VerifierSetPayloadType, document)
	if err != nil {
		return VerifierSet{}, err
	}
	body, err := e.DecodeB64Payload()
	if err != nil {
		return VerifierSet{}, reject(ReasonEnvelope, "cannot decode the envelope's payload")
	}
	return parseBody(body, document)
}

func parseBody(body []byte, document json.RawMessage) (VerifierSet, error) {
	s := VerifierSet{Hash: schema.SHA256Hex(body), Document: document}
	if err := schema.DecodeStrict(body, MaxDocumentBytes, &s.Doc); err != nil {
		return VerifierSet{}, reject(ReasonBody, "cannot parse the verifier set: %v", err)
	}
	switch d := s.Doc; {
	case d.V != setFormat:
		return VerifierSet{}, reject(ReasonVersion, "unknown version %d of the verifier set format", d.V)
	case d.Version < 1 || d.Epoch < 0 || d.ExpiresAt.IsZero():
		return VerifierSet{}, reject(ReasonBody, "the verifier set has no version or no expiry, or a negative epoch")
	}
	if err := cmp.Or(s.Doc.Keys.checkSet(MaxSetKeys), s.Doc.Roots.check(maxRootKeys, KeyRoot)); err != nil {
		return VerifierSet{}, schema.AsError(err).WithReason(ReasonBody)
	}
	return s, nil
}

// Ref returns the set's version and hash.
func (s VerifierSet) Ref() VerifierSetRef {
	return VerifierSetRef{Version: s.Doc.Version, Hash: s.Hash}
}

// Stored returns the set in the form in which it is stored. It must have a
// document.
func (s VerifierSet) Stored() StoredSet {
	return StoredSet{Version: s.Doc.Version, Epoch: s.Doc.Epoch, Hash: s.Hash, PrevHash: s.Doc.PrevHash, Document: s.Document}
}

// Matches reports whether the columns of a stored set agree with its document.
func (s VerifierSet) Matches(stored StoredSet) bool {
	return s.Ref() == VerifierSetRef{Version: stored.Version, Hash: stored.Hash} &&
		s.Doc.Epoch == stored.Epoch && s.Doc.PrevHash == stored.PrevHash
}

// Active returns the key that signs tasks and, together with a root key, the next
// set.
func (s VerifierSet) Active() VerifierKey {
	i := slices.IndexFunc(s.Doc.Keys, func(k VerifierKey) bool { return k.State == KeyActive })
	if i < 0 {
		return VerifierKey{}
	}
	return s.Doc.Keys[i]
}

// TrustedRoots returns the root keys that may sign the sets after s: its own, or those
// given if it names none.
func (s VerifierSet) TrustedRoots(given []VerifierKey) []VerifierKey {
	if len(s.Doc.Roots) > 0 {
		return s.Doc.Roots
	}
	return given
}

// Accepted returns the active and grace keys, whose signatures count.
func (s VerifierSet) Accepted() VerifierKeys {
	return slices.DeleteFunc(slices.Clone(s.Doc.Keys), func(k VerifierKey) bool { return !k.State.Verifies() })
}

// Expired reports whether the set has expired. A bundle's keys do not expire.
func (s VerifierSet) Expired(at time.Time) bool {
	return !s.Doc.ExpiresAt.IsZero() && at.After(s.Doc.ExpiresAt)
}

// Next verifies that a document may replace s, and parses it. A root key must
// have signed the document, and the document must be one of:
//
//   - the successor of s: the next version, of no lower epoch, with the hash of s,
//     also signed by the active key of s;
//   - a set of a higher epoch, whatever its version: the way to recover from a
//     mistake;
//   - s itself, if only a bundle's keys are known of s: Next then adds the dates
//     and the epoch. Until they are known, only a successor is accepted.
//
// A key that is revoked in s must not be valid in the document.
//
// Next ignores expiry, so that a node that was disconnected can follow the chain
// over expired sets. Errors are KindInvalidRequest with a reason of this package.
func (s VerifierSet) Next(env string, roots []VerifierKey, document json.RawMessage) (VerifierSet, error) {
	n, _, err := OpenVerifierSet(env, document, roots)
	if err != nil {
		return VerifierSet{}, err
	}
	known := s.Document != nil // otherwise the epoch of s is unknown
	begins := known && n.Doc.Epoch > s.Doc.Epoch
	switch {
	case n.Ref() == s.Ref():
		return n, nil
	case !begins && n.Doc.Version < s.Doc.Version, known && n.Doc.Epoch < s.Doc.Epoch:
		return VerifierSet{}, reject(ReasonSetOld, "verifier set %d of epoch %d is older than set %d of epoch %d",
			n.Doc.Version, n.Doc.Epoch, s.Doc.Version, s.Doc.Epoch)
	}
	if id := s.revives(n); id != "" {
		return VerifierSet{}, reject(ReasonKeyRevoked, "key %s is revoked in verifier set %d, and valid in set %d", id, s.Doc.Version, n.Doc.Version)
	}
	if begins {
		return n, nil
	}
	if err := s.CheckSuccessor(n); err != nil {
		return VerifierSet{}, err
	}
	if _, _, err := OpenEnvelope(VerifierSetPayloadType, document, []VerifierKey{s.Active()}); err != nil {
		return VerifierSet{}, err
	}
	return n, nil
}

// revives returns a key that s revoked and that is valid, or about to be, in n; "" if there is
// none.
func (s VerifierSet) revives(n VerifierSet) string {
	for _, old := range s.Doc.Keys {
		again := func(k VerifierKey) bool {
			return k.State != KeyRevoked && (k.KeyID == old.KeyID || k.Public.Equal(old.Public))
		}
		if old.State == KeyRevoked && slices.ContainsFunc(n.Doc.Keys, again) {
			return old.KeyID
		}
	}
	return ""
}

// CheckSuccessor verifies that n has the next version and names the hash of s.
func (s VerifierSet) CheckSuccessor(n VerifierSet) error {
	switch {
	case n.Doc.Version <= s.Doc.Version:
		return reject(ReasonSetFork, "there are two verifier sets %d: the current one is %s, the new one %s", n.Doc.Version, s.Hash, n.Hash)
	case n.Doc.Version > s.Doc.Version+1:
		return reject(ReasonSetGap, "verifier set %d does not follow %d: versions are missing", n.Doc.Version, s.Doc.Version)
	case n.Doc.PrevHash != s.Hash:
		return reject(ReasonSetFork, "verifier set %d follows another set %d than the current one", n.Doc.Version, s.Doc.Version)
	}
	return nil
}
