package verify

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"errors"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Reasons of a document that is not what it should be. The documents that come
// with a task put their own prefix before them.
const (
	refusedTooLarge  = "too_large"
	refusedEnvelope  = "bad_envelope"
	refusedType      = "payload_type"
	refusedSignature = "bad_signature"
	refusedBody      = "bad_body"
	refusedVersion   = "unknown_version"
	refusedEnv       = "other_env"
)

// Prefixes of the reasons.
const (
	ofGrant    = "grant_"
	ofGrantKey = "grant_key_"
	ofSet      = "set_"
)

// maxSignatures bounds the signatures of one document.
const maxSignatures = 4

// document is a kind of signed document: its payload type, which is part of what
// is signed, and the prefix of its reasons.
type document struct{ payloadType, prefix string }

func (d document) refuse(reason, format string, args ...any) error {
	return refuse(d.prefix+reason, format, args...)
}

// read returns the envelope's signed bytes when one of the keys signed them as
// this kind of document, and decodes them strictly into v: what was verified is
// what is used. It also returns the ids of the keys whose signatures hold.
func (d document) read(envelope []byte, keys []trust.VerifierKey, v any) (raw []byte, by []string, err error) {
	raw, by, err = d.open(envelope, keys)
	if err != nil {
		return nil, nil, err
	}
	if err := schema.DecodeStrict(raw, wire.MaxBodyBytes, v); err != nil {
		return nil, nil, d.refuse(refusedBody, "cannot parse the signed body: %v", err)
	}
	return raw, by, nil
}

// open is read without the decoding.
func (d document) open(envelope []byte, keys []trust.VerifierKey) (raw []byte, by []string, err error) {
	if len(envelope) > wire.MaxBodyBytes {
		return nil, nil, d.refuse(refusedTooLarge, "the envelope is larger than %d bytes", wire.MaxBodyBytes)
	}
	var e dsse.Envelope
	if err := schema.DecodeStrict(envelope, wire.MaxBodyBytes, &e); err != nil {
		return nil, nil, d.refuse(refusedEnvelope, "cannot parse the envelope: %v", err)
	}
	if e.PayloadType != d.payloadType {
		return nil, nil, d.refuse(refusedType, "the payload type is not %s", d.payloadType)
	}
	if len(e.Signatures) == 0 || len(e.Signatures) > maxSignatures {
		return nil, nil, d.refuse(refusedEnvelope, "the envelope holds %d signatures", len(e.Signatures))
	}
	var verifiers []dsse.Verifier
	for _, k := range keys {
		verifiers = append(verifiers, verifierKey{k})
	}
	ev, err := dsse.NewEnvelopeVerifier(verifiers...)
	if err != nil {
		return nil, nil, d.refuse(refusedSignature, "no accepted key: %v", err)
	}
	accepted, raw, err := ev.VerifyAndDecode(context.Background(), &e)
	if err != nil {
		return nil, nil, d.refuse(refusedSignature, "no accepted key signed this: %v", err)
	}
	for _, k := range accepted {
		by = append(by, k.KeyID)
	}
	return raw, by, nil
}

// verifierKey is a key in the form the DSSE library asks for.
type verifierKey struct{ key trust.VerifierKey }

// Verify implements dsse.Verifier.
func (k verifierKey) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(k.key.Public, data, sig) {
		return errors.New("wrong signature")
	}
	return nil
}

// KeyID implements dsse.Verifier. The id only narrows the search.
func (k verifierKey) KeyID() (string, error) { return k.key.KeyID, nil }

// Public implements dsse.Verifier.
func (k verifierKey) Public() crypto.PublicKey { return k.key.Public }
