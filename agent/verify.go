package agent

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
)

// Reasons of KindTaskRefused.
const (
	refusedTooLarge  = "too_large"
	refusedEnvelope  = "bad_envelope"
	refusedType      = "payload_type"
	refusedSignature = "bad_signature"
	refusedBody      = "bad_body"
	refusedVersion   = "unknown_version"
	refusedEnv       = "other_env"
	refusedNode      = "other_node"
	refusedIncarn    = "other_incarnation"
	refusedEarly     = "not_yet_valid"
	refusedExpired   = "expired"
	refusedTask      = "unknown_type"
	refusedEffect    = "wrong_effect"
	refusedID        = "task_id_mismatch"
	refusedReplay    = "replayed_seq"
	refusedDigest    = "other_payload"
	refusedParams    = "bad_params"
)

// Limits of acceptance.
const (
	payloadVersion   = 1
	notBeforeSkew    = 5 * time.Minute
	maxSignatures    = 4
	maxRefusalDetail = 256
)

// verifier decides which envelopes are tasks for this node.
type verifier struct {
	id   schema.Identity
	keys schema.VerifierSet
	now  func() time.Time
}

// verified is a payload whose signature and fields were checked.
type verified struct {
	payload schema.TaskPayload
	raw     []byte // the signed bytes
	digest  string // hex SHA-256 of raw
}

func refuse(reason, format string, args ...any) error {
	return schema.NewError(schema.KindTaskRefused, format, args...).WithReason(reason)
}

// check verifies the bytes, then parses them once and strictly. Every error is
// KindTaskRefused with a reason. It does not look at the sequence: that needs
// the journal.
func (v verifier) check(envelope []byte) (verified, error) {
	raw, err := v.open(envelope)
	if err != nil {
		return verified{}, err
	}
	var p schema.TaskPayload
	if err := schema.DecodeStrict(raw, schema.MaxBodyBytes, &p); err != nil {
		return verified{}, refuse(refusedBody, "the signed body is not a task: %v", err)
	}
	if err := v.admit(p); err != nil {
		return verified{}, err
	}
	sum := sha256.Sum256(raw)
	return verified{payload: p, raw: raw, digest: hex.EncodeToString(sum[:])}, nil
}

// open returns the envelope's payload bytes when an accepted key signed them as
// a task.
func (v verifier) open(envelope []byte) ([]byte, error) {
	if len(envelope) > schema.MaxBodyBytes {
		return nil, refuse(refusedTooLarge, "the envelope is larger than %d bytes", schema.MaxBodyBytes)
	}
	var e dsse.Envelope
	if err := schema.DecodeStrict(envelope, schema.MaxBodyBytes, &e); err != nil {
		return nil, refuse(refusedEnvelope, "the envelope does not read: %v", err)
	}
	if e.PayloadType != schema.TaskPayloadType {
		return nil, refuse(refusedType, "the payload type is not %s", schema.TaskPayloadType)
	}
	if len(e.Signatures) == 0 || len(e.Signatures) > maxSignatures {
		return nil, refuse(refusedEnvelope, "the envelope holds %d signatures", len(e.Signatures))
	}
	var keys []dsse.Verifier
	for _, k := range v.keys.Accepts() {
		keys = append(keys, taskKey{k})
	}
	ev, err := dsse.NewEnvelopeVerifier(keys...)
	if err != nil {
		return nil, refuse(refusedSignature, "no accepted key: %v", err)
	}
	_, raw, err := ev.VerifyAndDecode(context.Background(), &e)
	if err != nil {
		return nil, refuse(refusedSignature, "no accepted key signed this: %v", err)
	}
	return raw, nil
}

// admit checks the fields against this node and the time.
func (v verifier) admit(p schema.TaskPayload) error {
	now := v.now()
	row, known := p.Type.Row()
	switch {
	case p.V != payloadVersion:
		return refuse(refusedVersion, "version %d of the task format is not known here", p.V)
	case p.Env != v.id.Env:
		return refuse(refusedEnv, "the task is for another environment")
	case p.NodeID != v.id.NodeID:
		return refuse(refusedNode, "the task is for another node")
	case p.Incarnation != v.id.Incarnation:
		return refuse(refusedIncarn, "the task is for incarnation %d, this is %d", p.Incarnation, v.id.Incarnation)
	case !schema.IsID(p.TaskID):
		return refuse(refusedID, "the task's id is malformed")
	case now.Add(notBeforeSkew).Before(p.NotBefore):
		return refuse(refusedEarly, "the task is valid from %s, it is %s here", stamp(p.NotBefore), stamp(now))
	case now.After(p.ExpiresAt):
		return refuse(refusedExpired, "the task expired at %s, it is %s here", stamp(p.ExpiresAt), stamp(now))
	case !known:
		return refuse(refusedTask, "the task type is not known here")
	case p.Effect != row.Effect:
		return refuse(refusedEffect, "the effect of %s is %s, the task says %q", p.Type, row.Effect, clip(string(p.Effect)))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// clip bounds text that came from outside.
func clip(s string) string {
	if len(s) > maxRefusalDetail {
		return s[:maxRefusalDetail] + "…"
	}
	return s
}

// taskKey is a verifier key in the form the DSSE library asks for.
type taskKey struct{ key schema.VerifierKey }

// Verify implements dsse.Verifier.
func (k taskKey) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(k.key.Public, data, sig) {
		return errors.New("wrong signature")
	}
	return nil
}

// KeyID implements dsse.Verifier. The id only narrows the search.
func (k taskKey) KeyID() (string, error) { return k.key.KeyID, nil }

// Public implements dsse.Verifier.
func (k taskKey) Public() crypto.PublicKey { return k.key.Public }
