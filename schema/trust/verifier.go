package trust

import (
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// KeyState is the state of a task-signing key in a verifier set.
type KeyState string

// The key states. Only active and grace keys verify tasks. A staged key is
// published ahead of its use; a revoked key stays listed so that it is never
// accepted again.
const (
	KeyActive  KeyState = "active"
	KeyStaged  KeyState = "staged"
	KeyGrace   KeyState = "grace"
	KeyRevoked KeyState = "revoked"
)

// Verifies reports whether signatures of a key in this state are accepted.
func (s KeyState) Verifies() bool { return s == KeyActive || s == KeyGrace }

// VerifierKey is one Ed25519 key of a verifier set.
type VerifierKey struct {
	State  KeyState
	KeyID  string
	Public ed25519.PublicKey
}

// VerifierSet is the set of keys a node checks task signatures with.
type VerifierSet []VerifierKey

// maxVerifierKeys limits the keys of a bundle.
const maxVerifierKeys = 4

// ParseVerifierSet parses GPUAAS_TASK_SIGNING_PUBKEYS: comma-separated entries
// state:key-id:base64, where state is active, staged, grace or revoked, key-id
// is [A-Za-z0-9._-]{1,64} and base64 is the standard encoding of the 32 key
// bytes. It rejects an empty set, a repeated key id, more than four keys and a
// set without exactly one active key.
func ParseVerifierSet(s string) (VerifierSet, error) {
	var set VerifierSet
	for entry := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		k, err := parseVerifierKey(strings.TrimSpace(entry))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(set, func(o VerifierKey) bool { return o.KeyID == k.KeyID }) {
			return nil, schema.Errorf(schema.KindInvalidRequest, "verifier set: key id %q appears twice", k.KeyID)
		}
		set = append(set, k)
	}
	active := 0
	for _, k := range set {
		if k.State == KeyActive {
			active++
		}
	}
	if active != 1 || len(set) > maxVerifierKeys {
		return nil, schema.Errorf(schema.KindInvalidRequest, "verifier set: %d keys with %d active; want 1 to %d keys with exactly one active",
			len(set), active, maxVerifierKeys)
	}
	return set, nil
}

func parseVerifierKey(entry string) (VerifierKey, error) {
	parts := strings.Split(entry, ":")
	if len(parts) != 3 {
		return VerifierKey{}, schema.Errorf(schema.KindInvalidRequest, "verifier set: an entry must have the form state:key-id:base64")
	}
	state := KeyState(parts[0])
	if !slices.Contains([]KeyState{KeyActive, KeyStaged, KeyGrace, KeyRevoked}, state) {
		return VerifierKey{}, schema.Errorf(schema.KindInvalidRequest, "verifier set: unknown key state %q", parts[0])
	}
	if !validKeyID(parts[1]) {
		return VerifierKey{}, schema.Errorf(schema.KindInvalidRequest, "verifier set: bad key id %q", parts[1])
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return VerifierKey{}, schema.Errorf(schema.KindInvalidRequest, "verifier set: key %q is not 32 base64 bytes", parts[1])
	}
	return VerifierKey{State: state, KeyID: parts[1], Public: raw}, nil
}

func validKeyID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	return strings.IndexFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}) < 0
}

// String renders the set in the form that ParseVerifierSet accepts.
func (s VerifierSet) String() string {
	entries := make([]string, len(s))
	for i, k := range s {
		entries[i] = string(k.State) + ":" + k.KeyID + ":" + base64.StdEncoding.EncodeToString(k.Public)
	}
	return strings.Join(entries, ",")
}

// Accepts returns the keys whose signatures are accepted: active and grace.
func (s VerifierSet) Accepts() []VerifierKey {
	var out []VerifierKey
	for _, k := range s {
		if k.State.Verifies() {
			out = append(out, k)
		}
	}
	return out
}
