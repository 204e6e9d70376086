package vault

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// leafSpec describes an issued certificate. The certificate must contain all of it
// and nothing else.
type leafSpec struct {
	spki     []byte
	uri      string   // the only URI, "" for none
	dns, ips []string // sorted
	usage    x509.ExtKeyUsage
	lifetime time.Duration
}

// checkIssued compares an issued certificate with its specification and verifies
// it with the CA's live generations. Vault's role and policy already enforce all
// of it; the check detects a role or policy that was loosened.
func (c *Client) checkIssued(ctx context.Context, leaf *x509.Certificate, want leafSpec, cas *caCache) error {
	if fault := want.fault(leaf); fault != "" {
		return schema.NewError(schema.KindInternal, "discarded a certificate that Vault issued: it has %s (serial %s)",
			fault, trust.CertFactsOf(leaf).Serial).WithNext("gpuaas admin setup")
	}
	known, err := c.caCerts(ctx, cas)
	if err != nil {
		return err
	}
	if verifies(leaf, known.live, want.usage) {
		return nil
	}
	// A generation may be newer than the cache.
	if known, err = c.readCAs(ctx, cas); err != nil {
		return err
	}
	if !verifies(leaf, known.live, want.usage) {
		return schema.Errorf(schema.KindInternal, "discarded a certificate that Vault issued: no live CA of %s verifies it; check this machine's clock", cas.mount)
	}
	return nil
}

func verifies(leaf *x509.Certificate, roots []*x509.Certificate, usage x509.ExtKeyUsage) bool {
	pool := x509.NewCertPool()
	for _, r := range roots {
		pool.AddCert(r)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err == nil
}

// fault describes the first deviation of a certificate, or returns "".
func (w leafSpec) fault(c *x509.Certificate) string {
	var uris []string
	if w.uri != "" {
		uris = []string{w.uri}
	}
	switch {
	case !bytes.Equal(c.RawSubjectPublicKeyInfo, w.spki):
		return "another key"
	case !bytes.Equal(c.RawSubject, []byte(trust.EmptyName)):
		return "a subject"
	case !slices.Equal(texts(c.URIs), uris) || !slices.Equal(sorted(c.DNSNames), w.dns) ||
		!slices.Equal(sorted(texts(c.IPAddresses)), w.ips) || len(c.EmailAddresses) > 0 ||
		countNames(c) != len(uris)+len(w.dns)+len(w.ips):
		return "other names"
	case c.IsCA || !c.BasicConstraintsValid:
		return "the right to sign certificates"
	case c.KeyUsage != x509.KeyUsageDigitalSignature, !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{w.usage}),
		len(c.UnknownExtKeyUsage) > 0:
		return "other key usages"
	case unexpectedExtension(c):
		return "other extensions"
	case c.NotAfter.Sub(c.NotBefore) > w.lifetime+backdate+time.Minute:
		return "too long a lifetime"
	}
	return ""
}

// Object IDs of the extensions that a leaf may contain.
const (
	oidSubjectKeyID     = "2.5.29.14"
	oidKeyUsage         = "2.5.29.15"
	oidSubjectAltName   = "2.5.29.17"
	oidBasicConstraints = "2.5.29.19"
	oidCRLPoints        = "2.5.29.31"
	oidAuthorityKeyID   = "2.5.29.35"
	oidExtKeyUsage      = "2.5.29.37"
	oidAuthorityInfo    = "1.3.6.1.5.5.7.1.1"
)

func unexpectedExtension(c *x509.Certificate) bool {
	known := []string{oidSubjectKeyID, oidKeyUsage, oidSubjectAltName, oidBasicConstraints, oidCRLPoints,
		oidAuthorityKeyID, oidExtKeyUsage, oidAuthorityInfo}
	for _, e := range c.Extensions {
		if !slices.Contains(known, e.Id.String()) {
			return true
		}
	}
	return len(c.UnhandledCriticalExtensions) > 0
}

// countNames counts all subject alternative names, including the types that the
// standard library's parser skips. It returns -1 if they cannot be parsed.
func countNames(c *x509.Certificate) int {
	n := 0
	for _, e := range c.Extensions {
		if e.Id.String() != oidSubjectAltName {
			continue
		}
		var names []asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &names); err != nil || len(rest) > 0 {
			return -1
		}
		n += len(names)
	}
	return n
}

// texts renders URLs or addresses. It returns nil for an empty list.
func texts[T interface{ String() string }](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }
