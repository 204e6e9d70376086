package verify

import (
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Reasons of a rejected document. Documents that come with a task add a prefix of
// their own.
const (
	refusedTooLarge  = trust.ReasonTooLarge
	refusedEnvelope  = trust.ReasonEnvelope
	refusedType      = trust.ReasonPayloadType
	refusedSignature = trust.ReasonSignature
	refusedBody      = trust.ReasonBody
	refusedVersion   = trust.ReasonVersion
	refusedEnv       = trust.ReasonEnvironment
)

// Prefixes of the reasons.
const (
	ofGrant    = "grant_"
	ofGrantKey = "grant_key_"
	ofSet      = "set_"
)

// document is a kind of signed document: its payload type, which is part of what
// is signed, and the prefix of its reasons.
type document struct{ payloadType, prefix string }

func (d document) refuse(reason, format string, args ...any) error {
	return refuse(d.prefix+reason, format, args...)
}

// read verifies that one of the keys signed the envelope as this kind of document,
// and decodes the signed bytes strictly into v. It returns those bytes and the IDs
// of the keys that signed them.
func (d document) read(envelope []byte, keys []trust.VerifierKey, v any) (raw []byte, by []string, err error) {
	raw, by, err = trust.OpenEnvelope(d.payloadType, envelope, keys)
	if err != nil {
		e := schema.AsError(err)
		return nil, nil, d.refuse(e.Reason, "%s", e.Message)
	}
	if err := schema.DecodeStrict(raw, wire.MaxBodyBytes, v); err != nil {
		return nil, nil, d.refuse(refusedBody, "cannot parse the signed body: %v", err)
	}
	return raw, by, nil
}
