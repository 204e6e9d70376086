package trust

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

// Extensions that a refusal names.
var (
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17} //nolint:gochecknoglobals // read-only
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19} //nolint:gochecknoglobals // read-only
)

// ParseCSR parses exactly one PEM block with a certificate request that passes
// CheckCSR. Errors are KindInvalidRequest with a reason that starts with csr_.
func ParseCSR(text string) (*x509.CertificateRequest, error) {
	if len(text) > maxCSRPEM {
		return nil, csrError("csr_size", "it has more than %d bytes", maxCSRPEM)
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
	return csr, CheckCSR(csr)
}

// CheckCSR accepts a certificate request that carries a P-256 key, a signature
// by that key, and nothing else: no subject, names, extensions or attributes.
// The issuer copies only the key, so a request for more is a mistake or an
// attack; it is rejected instead of trimmed to make it visible. Errors are
// KindInvalidRequest with a reason that starts with csr_.
func CheckCSR(csr *x509.CertificateRequest) error {
	if csr == nil {
		return csrError("csr_malformed", "it is missing")
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return csrError("csr_key", "its key must be P-256")
	}
	if err := csr.CheckSignature(); err != nil {
		return csrError("csr_signature", "it is not signed by its own key")
	}
	if !bytes.Equal(csr.RawSubject, []byte{0x30, 0}) {
		return csrError("csr_subject", "its subject must be empty")
	}
	for _, e := range csr.Extensions {
		switch {
		case e.Id.Equal(oidSubjectAltName):
			return csrError("csr_san", "it must not request names")
		case e.Id.Equal(oidBasicConstraints):
			return csrError("csr_ca", "it must not request a CA certificate")
		}
	}
	if len(csr.Extensions) > 0 {
		return csrError("csr_extension", "it must not request extensions")
	}
	if !noAttributes(csr.RawTBSCertificateRequest) {
		return csrError("csr_attribute", "it must not have attributes")
	}
	return nil
}

// noAttributes reports whether the request's attribute set is empty.
// x509.CertificateRequest omits the attributes that it does not recognize.
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
	e := schema.NewError(schema.KindInvalidRequest, "invalid certificate request: "+format, args...)
	return e.WithReason(reason)
}
