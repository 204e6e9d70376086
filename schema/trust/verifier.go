package trust

import (
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
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
	// KeyRoot is the state of a root key. No key that signs tasks has it.
	KeyRoot KeyState = "root"
)

// Verifies reports whether signatures of a key in this state are accepted.
func (s KeyState) Verifies() bool { return s == KeyActive || s == KeyGrace }

// VerifierKey is one Ed25519 key of a verifier set.
type VerifierKey struct {
	KeyID  string            `json:"kid"` // [A-Za-z0-9._-]{1,64}
	Public ed25519.PublicKey `json:"pub"` // standard base64 of the 32 key bytes
	State  KeyState          `json:"state"`
}

// maxKeyID is the longest ID of a key.
const maxKeyID = 64

// VerifierKeys are the keys of a verifier set.
type VerifierKeys []VerifierKey

// check requires at most limit keys with distinct IDs and bytes, in the states
// given.
func (s VerifierKeys) check(limit int, states ...KeyState) error {
	if len(s) > limit {
		return schema.NewError(schema.KindInvalidRequest, "verifier set: %d keys, want at most %d", len(s), limit)
	}
	for i, k := range s {
		repeated := slices.ContainsFunc(s[:i], func(o VerifierKey) bool { return o.KeyID == k.KeyID || o.Public.Equal(k.Public) })
		if repeated || !text.IsToken(k.KeyID, maxKeyID, "._-") || len(k.Public) != ed25519.PublicKeySize || !slices.Contains(states, k.State) {
			return schema.NewError(schema.KindInvalidRequest, "verifier set: key %.64q is malformed or repeated", k.KeyID)
		}
	}
	return nil
}

// checkSet requires the keys of a verifier set: see check, with exactly one active
// key.
func (s VerifierKeys) checkSet(limit int) error {
	if err := s.check(limit, KeyActive, KeyStaged, KeyGrace, KeyRevoked); err != nil {
		return err
	}
	active := 0
	for _, k := range s {
		if k.State == KeyActive {
			active++
		}
	}
	if active != 1 {
		return schema.NewError(schema.KindInvalidRequest, "verifier set: %d active keys, want 1", active)
	}
	return nil
}

func parseVerifierKey(entry string) (VerifierKey, error) {
	parts := strings.Split(entry, ":")
	if len(parts) != 3 {
		return VerifierKey{}, schema.NewError(schema.KindInvalidRequest, "verifier set: an entry must have the form state:key-id:base64")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return VerifierKey{}, schema.NewError(schema.KindInvalidRequest, "verifier set: key %.64q is not base64", parts[1])
	}
	return VerifierKey{State: KeyState(parts[0]), KeyID: parts[1], Public: raw}, nil
}

// String renders the keys in the form that ParseTaskTrust accepts.
func (s VerifierKeys) String() string {
	entries := make([]string, len(s))
	for i, k := range s {
		entries[i] = string(k.State) + ":" + k.KeyID + ":" + base64.StdEncoding.EncodeToString(k.Public)
	}
	return strings.Join(entries, ",")
}
