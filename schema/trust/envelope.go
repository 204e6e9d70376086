package trust

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"errors"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
)

// Reasons for rejecting a signed document, whatever its type.
const (
	ReasonTooLarge    = "too_large"
	ReasonEnvelope    = "bad_envelope"
	ReasonPayloadType = "payload_type"
	ReasonSignature   = "bad_signature"
	ReasonBody        = "bad_body"
	ReasonVersion     = "unknown_version"
	ReasonEnvironment = "other_env"
)

const (
	// MaxDocumentBytes limits an envelope and, separately, its signed body.
	MaxDocumentBytes = 64 << 10
	// MaxSignatures limits the signatures of an envelope.
	MaxSignatures = 4
)

// OpenEnvelope verifies a DSSE envelope of the payload type and returns its body and the
// IDs of the keys that signed it. At least one of the given keys must have signed
// the envelope. Errors are KindInvalidRequest with one of the reasons above.
func OpenEnvelope(payloadType string, envelope []byte, keys []VerifierKey) (body []byte, signers []string, err error) {
	e, err := parseEnvelope(payloadType, envelope)
	if err != nil {
		return nil, nil, err
	}
	verifiers := make([]dsse.Verifier, len(keys))
	for i, k := range keys {
		verifiers[i] = verifier{k}
	}
	v, err := dsse.NewEnvelopeVerifier(verifiers...)
	if err != nil {
		return nil, nil, reject(ReasonSignature, "no key is accepted for this document: %v", err)
	}
	accepted, body, err := v.VerifyAndDecode(context.Background(), &e)
	if err != nil {
		return nil, nil, reject(ReasonSignature, "no accepted key signed the document: %v", err)
	}
	for _, k := range accepted {
		signers = append(signers, k.KeyID)
	}
	return body, signers, nil
}

// parseEnvelope parses an envelope without verifying its signatures.
func parseEnvelope(payloadType string, envelope []byte) (dsse.Envelope, error) {
	var e dsse.Envelope
	if len(envelope) > MaxDocumentBytes {
		return e, reject(ReasonTooLarge, "the envelope is larger than %d bytes", MaxDocumentBytes)
	}
	if err := schema.DecodeStrict(envelope, MaxDocumentBytes, &e); err != nil {
		return e, reject(ReasonEnvelope, "cannot parse the envelope: %v", err)
	}
	if e.PayloadType != payloadType {
		return e, reject(ReasonPayloadType, "the payload type is not %s", payloadType)
	}
	if len(e.Signatures) == 0 || len(e.Signatures) > MaxSignatures {
		return e, reject(ReasonEnvelope, "the envelope has %d signatures, want 1 to %d", len(e.Signatures), MaxSignatures)
	}
	return e, nil
}

func reject(reason, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason(reason)
}

// verifier adapts a key to the DSSE library.
type verifier struct{ key VerifierKey }

// Verify implements dsse.Verifier.
func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	if len(v.key.Public) != ed25519.PublicKeySize || !ed25519.Verify(v.key.Public, data, sig) {
		return errors.New("wrong signature")
	}
	return nil
}

// KeyID implements dsse.Verifier. The library skips keys whose ID differs from
// the signature's.
func (v verifier) KeyID() (string, error) { return v.key.KeyID, nil }

// Public implements dsse.Verifier.
func (v verifier) Public() crypto.PublicKey { return v.key.Public }
