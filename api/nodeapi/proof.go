package nodeapi

import (
	"crypto/ecdsa"
	"encoding/base64"
	"net/http"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxSignature bounds the signature header; a P-256 signature has at most 96
// characters.
const maxSignature = 128

// verifyResult verifies that the key of the caller's certificate signed the
// request body for this task, so an intermediary can neither alter a result nor
// replay it for another task. The signature is mandatory: otherwise an
// intermediary could strip it and pose as an older agent.
func (a *API) verifyResult(r *http.Request, taskID string, body []byte) (*trust.ResultProof, error) {
	leaf := r.TLS.PeerCertificates[0]
	serial := trust.CertFactsOf(leaf).Serial
	sent := r.Header.Values(wire.HeaderResultSignature)
	if len(sent) == 0 {
		return nil, a.refused(r, identityError(schema.ReasonResultSignature, "the result is not signed: header %s is missing",
			wire.HeaderResultSignature).WithNext("install the agent of this release on the node; it sends the result again"))
	}
	signature, err := decodeSignature(sent)
	key, isECDSA := leaf.PublicKey.(*ecdsa.PublicKey)
	if err != nil || !isECDSA || !ecdsa.VerifyASN1(key, trust.ResultDigest(taskID, body), signature) {
		return nil, a.refused(r, identityError(schema.ReasonResultSignature,
			"the key of certificate %s did not sign this result of task %s: the body was altered in transit or signed with another key",
			serial, taskID))
	}
	return &trust.ResultProof{Serial: serial, Key: leaf.RawSubjectPublicKeyInfo, Body: body, Signature: signature}, nil
}

// decodeSignature accepts exactly one signature in canonical encoding.
func decodeSignature(sent []string) ([]byte, error) {
	if len(sent) != 1 || len(sent[0]) > maxSignature {
		return nil, base64.CorruptInputError(0)
	}
	return base64.RawURLEncoding.Strict().DecodeString(sent[0])
}
