package verify

import (
	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// open verifies that one of the keys signed the envelope as a document of the payload
// type, and decodes the signed bytes strictly into v. It returns those bytes. Reasons
// of refusals get the prefix.
func open(payloadType, prefix string, envelope []byte, keys []trust.VerifierKey, v any) (raw []byte, err error) {
	raw, _, err = trust.OpenEnvelope(payloadType, envelope, keys)
	if err != nil {
		e := schema.AsError(err)
		return nil, refusal.New(prefix+e.Reason, "%s", e.Message)
	}
	if err := schema.DecodeStrict(raw, wire.MaxBodyBytes, v); err != nil {
		return nil, refusal.New(prefix+trust.ReasonBody, "cannot parse the signed body: %v", err)
	}
	return raw, nil
}
