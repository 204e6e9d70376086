package trust

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Payload types of the signed documents, apart from tasks. The type is part of
// the signed bytes, so one kind of document cannot be presented as another.
const (
	LeasePayloadType       = "application/vnd.gpuaas.task-lease.v1+json"
	LeaseKeyPayloadType    = "application/vnd.gpuaas.lease-key.v1+json"
	VerifierSetPayloadType = "application/vnd.gpuaas.verifier-set.v1+json"
)

const (
	// LeaseKeyLifetime is how long the delegation of an API replica's lease key
	// is valid.
	LeaseKeyLifetime = 24 * time.Hour
	// ClockSkew is how far the clocks of the control plane may differ. Documents
	// and certificates are accepted this much before their start.
	ClockSkew = 5 * time.Minute
)

// EnvelopeDigest returns the hex SHA-256 of the signed body of a DSSE envelope.
// It is KindInternal if the input is not an envelope.
func EnvelopeDigest(envelope []byte) (string, error) {
	body, err := EnvelopeBody(envelope)
	if err != nil {
		return "", err
	}
	return schema.SHA256Hex(body), nil
}

// EnvelopeBody returns the signed body of a DSSE envelope without verifying it. It is
// KindInternal if the input is not an envelope.
func EnvelopeBody(envelope []byte) ([]byte, error) {
	var e struct {
		Payload []byte `json:"payload"` // base64
	}
	if err := json.Unmarshal(envelope, &e); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "cannot parse a stored envelope")
	}
	return e.Payload, nil
}

// SigningKey returns the ID of the key that a DSSE envelope names for its first signature,
// "" if it is no envelope or names none. It verifies nothing.
func SigningKey(envelope []byte) string {
	var e struct {
		Signatures []struct {
			KeyID string `json:"keyid"`
		} `json:"signatures"`
	}
	if json.Unmarshal(envelope, &e) != nil || len(e.Signatures) == 0 || !text.IsToken(e.Signatures[0].KeyID, maxKeyID, "._-") {
		return ""
	}
	return e.Signatures[0].KeyID
}

// LeaseKey is the signed body of a delegation: a DSSE payload of type
// LeaseKeyPayloadType, signed by an active or grace key of the verifier set. It
// lets an API replica sign lease grants, and nothing else, with a key of its own,
// so that no dispatch waits for Vault.
type LeaseKey struct {
	V         int               `json:"v"` // 1
	Env       string            `json:"env"`
	KeyID     string            `json:"key_id"`
	Public    ed25519.PublicKey `json:"public"` // standard base64 of the 32 key bytes
	NotBefore time.Time         `json:"not_before"`
	NotAfter  time.Time         `json:"not_after"`
}

// VerifierSetDoc is the signed body of a verifier set: a DSSE payload of type
// VerifierSetPayloadType. A root key and the active key of version N sign version
// N+1, which contains the hash of N. A node accepts only the next version, or a
// root-signed one of a higher epoch (the way to recover from a mistake).
type VerifierSetDoc struct {
	V        int          `json:"v"` // 1
	Env      string       `json:"env"`
	Version  int64        `json:"version"` // from 1
	PrevHash string       `json:"prev_hash"`
	Epoch    int64        `json:"epoch"`
	Keys     VerifierKeys `json:"keys"`
	// Roots are the root keys that may sign the sets after this one. Without any, those
	// that the node trusts already may.
	Roots     VerifierKeys `json:"roots,omitempty"`
	IssuedAt  time.Time    `json:"issued_at"`
	ExpiresAt time.Time    `json:"expires_at"`
}

// StoredSet is a verifier set as the database stores it and the node API serves
// it.
type StoredSet struct {
	Version int64
	Epoch   int64
	// Hash is the hex SHA-256 of the signed body.
	Hash     string
	PrevHash string
	// Document is the DSSE envelope.
	Document json.RawMessage
	// Restored is set on the newest set if a restore mode began after it was stored. Nodes may
	// hold later sets, which the database lost, so the next set must begin an epoch.
	Restored bool
	// Restoring is set on the newest set while a restore mode is on: an operator may still have to
	// repeat a revocation that the database lost.
	Restoring bool
}

// VerifierSets is the body of a 200 response to GET verifier-sets: the DSSE
// envelopes after the requested version, oldest first.
type VerifierSets struct {
	Sets []json.RawMessage `json:"sets"`
}

// ResultDigest returns the SHA-256 that a node signs for a task's result: that of the
// DSSE pre-authentication encoding of ResultPayloadType and the body as sent.
func ResultDigest(taskID string, body []byte) []byte {
	sum := sha256.Sum256(dsse.PAE(ResultPayloadType(taskID), body))
	return sum[:]
}

// ResultPayloadType returns the DSSE payload type of a task's result. It contains
// the task ID, which the body does not, so that a result cannot be presented as
// the result of another task or as another kind of document.
func ResultPayloadType(taskID string) string {
	return "application/vnd.gpuaas.task-result.v1+json; task_id=" + taskID
}

// ResultProof proves to a third party that a node reported a result, even after
// the node's certificate has expired.
type ResultProof struct {
	// Serial is the serial of the certificate whose key signed the result.
	Serial string `json:"serial"`
	// Key is the certificate's public key, PKIX in DER. The certificate's row and
	// its audit event contain the hash of the key.
	Key []byte `json:"key"`
	// Body is the result exactly as the node sent it, empty if a secret in it was
	// withheld. Signature is the decoded value of HeaderResultSignature.
	Body      []byte `json:"body"`
	Signature []byte `json:"signature"`
}
