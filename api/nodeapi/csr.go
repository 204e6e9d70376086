package nodeapi

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	csrBlock  = "CERTIFICATE REQUEST"
	maxCSRPEM = 4 << 10 // a P-256 request has about 400 bytes
)

// oidBasicConstraints marks a request that asks to become a CA.
var oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}

// oidSubjectAltName marks a request that asks for names.
var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// parseCSR reads a certificate request that brings a key and nothing else: one
// PEM block, a P-256 key, signed by that key, without subject, names,
// extensions or attributes. The issuer takes nothing but the key anyway; a
// request for more is a mistake or an attack and is refused, so that it is seen.
func parseCSR(text string) (*x509.CertificateRequest, error) {
	if len(text) > maxCSRPEM {
		return nil, csrError("csr_size", "more than %d bytes", maxCSRPEM)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != csrBlock || len(block.Headers) > 0 ||
		len(bytes.TrimSpace(rest)) > 0 || !bytes.HasPrefix(bytes.TrimSpace([]byte(text)), []byte("-----BEGIN")) {
		return nil, csrError("csr_pem", "it must be exactly one PEM block %q", csrBlock)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, csrError("csr_malformed", "it cannot be parsed")
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, csrError("csr_key", "its key must be P-256")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, csrError("csr_signature", "it is not signed by its own key")
	}
	return csr, checkContents(csr)
}

func checkContents(csr *x509.CertificateRequest) error {
	if len(csr.Subject.Names) > 0 || !bytes.Equal(csr.RawSubject, []byte{0x30, 0}) {
		return csrError("csr_subject", "it must have an empty subject")
	}
	for _, e := range csr.Extensions {
		switch {
		case e.Id.Equal(oidSubjectAltName):
			return csrError("csr_san", "it must ask for no names")
		case e.Id.Equal(oidBasicConstraints):
			return csrError("csr_ca", "it must not ask to be a CA")
		}
	}
	if len(csr.Extensions) > 0 {
		return csrError("csr_extension", "it must ask for no extensions")
	}
	if !noAttributes(csr.RawTBSCertificateRequest) {
		return csrError("csr_attribute", "it must have no attributes")
	}
	return nil
}

// noAttributes reports whether the request's set of attributes is empty.
// x509.CertificateRequest hides those it does not know.
func noAttributes(tbs []byte) bool {
	var r struct {
		Raw        asn1.RawContent
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	rest, err := asn1.Unmarshal(tbs, &r)
	return err == nil && len(rest) == 0 && len(r.Attributes) == 0
}

func csrError(reason, format string, args ...any) error {
	e := schema.NewError(schema.KindInvalidRequest, "the certificate request is refused: "+format, args...)
	return e.WithReason(reason)
}
