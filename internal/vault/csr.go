package vault

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"

	"github.com/gpuaas/gpuaas/schema"
)

// emptyName is the DER of a name without any part.
const emptyName = "\x30\x00"

// checkCSR accepts a certificate request that is a P-256 key, the proof that
// the caller holds it, and nothing else. A request that asks for more is
// refused, not trimmed: whoever sends one expects something we do not give.
func checkCSR(csr *x509.CertificateRequest) error {
	if csr == nil {
		return refuseCSR(ReasonCSRExtras, "there is no certificate request")
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return refuseCSR(ReasonCSRKey, "the certificate request's key is not an ECDSA key on P-256")
	}
	if !bytes.Equal(csr.RawSubject, []byte(emptyName)) {
		return refuseCSR(ReasonCSRExtras, "the certificate request names a subject; the identity is set by the server")
	}
	if n, err := countAttributes(csr.RawTBSCertificateRequest); err != nil || n > 0 {
		return refuseCSR(ReasonCSRExtras, "the certificate request asks for names, extensions or other attributes; the server sets them all")
	}
	if err := csr.CheckSignature(); err != nil {
		return refuseCSR(ReasonCSRSignature, "the certificate request is not signed by its own key")
	}
	return nil
}

// countAttributes counts all attributes of a request, also those which the
// standard library's parser skips.
func countAttributes(tbs []byte) (int, error) {
	var request struct {
		Raw        asn1.RawContent
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0,set"`
	}
	rest, err := asn1.Unmarshal(tbs, &request)
	if err == nil && len(rest) > 0 {
		err = asn1.SyntaxError{Msg: "data after the request"}
	}
	return len(request.Attributes), err
}

func refuseCSR(reason, message string) error {
	return schema.NewError(schema.KindInvalidRequest, "%s", message).WithReason(reason)
}
