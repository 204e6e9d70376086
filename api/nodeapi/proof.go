package nodeapi

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"net/http"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxSignature bounds the signature's header: one of P-256 has 96 characters at
// most.
const maxSignature = 128

// resultProof checks that the key of the certificate that identified the caller signed
// the body as it came, and for this task: whoever carries requests between node
// and API cannot alter a result, nor take one for another task's. No caller may
// leave the signature out, since who could do so could say that he is an agent
// that does not sign.
func (a *API) resultProof(r *http.Request, taskID string, body []byte) (*trust.ResultProof, error) {
	leaf := r.TLS.PeerCertificates[0]
	sent := r.Header.Values(wire.HeaderResultSignature)
	if len(sent) == 0 {
		return nil, a.refused(r, identityError(schema.ReasonResultSignature, "the result is not signed: %s is missing",
			wire.HeaderResultSignature).WithNext("install the agent of this release on the node; it posts the result again"))
	}
	signature, err := decodeSignature(sent)
	key, isECDSA := leaf.PublicKey.(*ecdsa.PublicKey)
	sum := sha256.Sum256(dsse.PAE(trust.ResultPayloadType(taskID), body))
	if err != nil || !isECDSA || !ecdsa.VerifyASN1(key, sum[:], signature) {
		return nil, a.refused(r, identityError(schema.ReasonResultSignature,
			"the key of certificate %s did not sign this result of task %s: it was altered on its way, or signed with another key",
			trust.CertFactsOf(leaf).Serial, taskID))
	}
	return &trust.ResultProof{Serial: trust.CertFactsOf(leaf).Serial, Key: leaf.RawSubjectPublicKeyInfo, Body: body, Signature: signature}, nil
}

// decodeSignature takes the one spelling of one signature.
func decodeSignature(sent []string) ([]byte, error) {
	if len(sent) != 1 || len(sent[0]) > maxSignature {
		return nil, base64.CorruptInputError(0)
	}
	return base64.RawURLEncoding.Strict().DecodeString(sent[0])
}
