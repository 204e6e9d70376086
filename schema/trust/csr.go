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
	maxCSRPEM = 4 << 10 // a P-256 request takes about 400 bytes
)

// EmptyName is the DER encoding of an empty X.509 name.
const EmptyName = "\x30\x00"

// Object IDs of extensions that have a reason of their own.
const (
	oidSubjectAltName   = "2.5.29.17"
	oidBasicConstraints = "2.5.29.19"
)

// ParseCSR parses a PEM certificate request that holds a P-256 key, the key's
// signature and nothing else: see CheckCSR. The text must be exactly one PEM
// block of at most 4 KiB. Errors are KindInvalidRequest with a reason of the form
// csr_*; they never repeat the request.
func ParseCSR(text string) (*x509.CertificateRequest, error) {
	if len(text) > maxCSRPEM {
		return nil, csrError("csr_size", "it is larger than %d bytes", maxCSRPEM)
	}
	trimmed := bytes.TrimSpace([]byte(text))
	block, rest := pem.Decode(trimmed)
	// pem.Decode skips text before the block, so the prefix is checked too.
	if block == nil || block.Type != csrBlock || len(block.Headers) > 0 ||
		len(bytes.TrimSpace(rest)) > 0 || !bytes.HasPrefix(trimmed, []byte("-----BEGIN")) {
		return nil, csrError("csr_pem", "it must be exactly one PEM block of type %q", csrBlock)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, csrError("csr_malformed", "it cannot be parsed")
	}
	if err := CheckCSR(csr); err != nil {
		return nil, err
	}
	return csr, nil
}

// CheckCSR verifies that a certificate request holds a P-256 key, the key's
// signature and no subject, name, extension or attribute. The issuer uses only
// the key; a request for more is rejected rather than trimmed, so that the
// mistake or the attack is visible. Errors are those of ParseCSR.
func CheckCSR(csr *x509.CertificateRequest) error {
	if csr == nil {
		return csrError("csr_malformed", "it is missing")
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return csrError("csr_key", "its key must be an ECDSA key on P-256")
	}
	if err := csr.CheckSignature(); err != nil {
		return csrError("csr_signature", "it is not signed by its own key")
	}
	if !bytes.Equal(csr.RawSubject, []byte(EmptyName)) {
		return csrError("csr_subject", "its subject must be empty")
	}
	for _, e := range csr.Extensions {
		switch e.Id.String() {
		case oidSubjectAltName:
			return csrError("csr_san", "it must not request subject alternative names")
		case oidBasicConstraints:
			return csrError("csr_ca", "it must not request a CA certificate")
		}
	}
	if len(csr.Extensions) > 0 {
		return csrError("csr_extension", "it must not request extensions")
	}
	if !noAttributes(csr.RawTBSCertificateRequest) {
		return csrError("csr_attribute", "it must not contain attributes")
	}
	return nil
}

// noAttributes reports whether the request's attribute set is empty.
// x509.CertificateRequest hides attributes that the parser does not recognize.
func noAttributes(tbs []byte) bool {
	var r struct {
		Raw        asn1.RawContent
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0,set"`
	}
	_, err := asn1.Unmarshal(tbs, &r)
	return err == nil && len(r.Attributes) == 0
}

func csrError(reason, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, "certificate request rejected: "+format, args...).WithReason(reason)
}
