package trust

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Payload types of the signed documents beside the task itself. Each is part of
// what is signed, so that none passes for another.
const (
	LeasePayloadType       = "application/vnd.gpuaas.task-lease.v1+json"
	LeaseKeyPayloadType    = "application/vnd.gpuaas.lease-key.v1+json"
	VerifierSetPayloadType = "application/vnd.gpuaas.verifier-set.v1+json"
)

// Timings of dispatch, from design/architecture.md §7 and trust.md C6.
const (
	// LeaseKeyLifetime is how long an API replica's delegated key is good.
	LeaseKeyLifetime = 24 * time.Hour
)

// EnvelopeDigest is the hex SHA-256 of a DSSE envelope's signed body. KindInternal
// for what is no envelope.
func EnvelopeDigest(envelope []byte) (string, error) {
	var e struct {
		Payload []byte `json:"payload"` // base64
	}
	if err := json.Unmarshal(envelope, &e); err != nil {
		return "", schema.Wrap(schema.KindInternal, err, "a stored envelope cannot be read")
	}
	sum := sha256.Sum256(e.Payload)
	return hex.EncodeToString(sum[:]), nil
}

// LeaseKey is the signed body of a delegation: DSSE payload of type
// LeaseKeyPayloadType, by an active or grace key of the verifier set. It lets an
// API replica sign grants, and nothing else, with a key of its own, so that no
// hand-over waits for Vault.
type LeaseKey struct {
	V         int       `json:"v"` // 1
	Env       string    `json:"env"`
	KeyID     string    `json:"key_id"`
	Public    string    `json:"public"` // standard base64 of the 32 key bytes
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
}

// VerifierSetDoc is the signed body of a verifier set: DSSE payload of type
// VerifierSetPayloadType. Version N+1 is signed by a root key and by the active
// key of version N, and names the hash of N; a node takes only the next version,
// or a root-signed one of a higher epoch (the way out of a mistake).
type VerifierSetDoc struct {
	V         int              `json:"v"` // 1
	Env       string           `json:"env"`
	Version   int64            `json:"version"` // from 1
	PrevHash  string           `json:"prev_hash"`
	Epoch     int64            `json:"epoch"`
	Keys      []VerifierSetKey `json:"keys"`
	IssuedAt  time.Time        `json:"issued_at"`
	ExpiresAt time.Time        `json:"expires_at"`
}

// VerifierSetKey is one key of a VerifierSetDoc.
type VerifierSetKey struct {
	KeyID  string   `json:"kid"`
	Public string   `json:"pub"` // standard base64 of the 32 key bytes
	State  KeyState `json:"state"`
	// SignFrom and AcceptUntil bound the key's use; zero leaves it open.
	SignFrom    time.Time `json:"sign_from,omitzero"`
	AcceptUntil time.Time `json:"accept_until,omitzero"`
}

// StoredSet is a verifier set as it is kept and handed out.
type StoredSet struct {
	Version int64
	Epoch   int64
	// Hash is the hex SHA-256 of the signed body.
	Hash     string
	PrevHash string
	// Document is the DSSE envelope.
	Document json.RawMessage
}

// VerifierSets is the body of a 200 of GET verifier-sets: the DSSE envelopes
// after the version that was asked for, oldest first.
type VerifierSets struct {
	Sets []json.RawMessage `json:"sets"`
}
