package vault

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// leafWant is what an issued certificate must say. What is not named here it
// must not say.
type leafWant struct {
	spki     []byte
	uri      string   // the only URI, "" for none
	dns, ips []string // sorted
	usage    x509.ExtKeyUsage
	lifetime time.Duration
}

// checkIssued compares an issued certificate with what was asked and verifies
// it with the CA's live generations. Vault's role and policy already see to all
// of it; this finds the day when somebody has loosened them.
func (c *Client) checkIssued(ctx context.Context, leaf *x509.Certificate, want leafWant, cas *caCache, mount string) error {
	if fault := want.fault(leaf); fault != "" {
		return schema.NewError(schema.KindInternal, "Vault issued a certificate %s (serial %s); it is not used",
			fault, trust.CertFactsOf(leaf).Serial).WithNext("gpuaas admin setup")
	}
	known, err := c.caCerts(ctx, cas, mount)
	if err != nil {
		return err
	}
	if verifies(leaf, known.live, want.usage) {
		return nil
	}
	// A generation may be newer than the cache.
	if known, err = c.readCAs(ctx, cas, mount); err != nil {
		return err
	}
	if !verifies(leaf, known.live, want.usage) {
		return schema.Errorf(schema.KindInternal, "Vault issued a certificate that no live CA of %s verifies; it is not used (is this machine's clock right?)", mount)
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

// fault says what is wrong with the certificate, "" when nothing is.
func (w leafWant) fault(c *x509.Certificate) string {
	var uris []string
	if w.uri != "" {
		uris = []string{w.uri}
	}
	switch {
	case !bytes.Equal(c.RawSubjectPublicKeyInfo, w.spki):
		return "for another key"
	case !bytes.Equal(c.RawSubject, []byte(trust.EmptyName)):
		return "with a subject"
	case !slices.Equal(texts(c.URIs), uris) || !slices.Equal(sorted(c.DNSNames), w.dns) ||
		!slices.Equal(sorted(texts(c.IPAddresses)), w.ips) || len(c.EmailAddresses) > 0 ||
		countNames(c) != len(uris)+len(w.dns)+len(w.ips):
		return "with other names"
	case c.IsCA || !c.BasicConstraintsValid:
		return "that may sign others"
	case c.KeyUsage != x509.KeyUsageDigitalSignature, !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{w.usage}),
		len(c.UnknownExtKeyUsage) > 0:
		return "for other uses"
	case unexpectedExtension(c):
		return "with other extensions"
	case c.NotAfter.Sub(c.NotBefore) > w.lifetime+backdate+time.Minute:
		return "that lives too long"
	}
	return ""
}

// Object ids of the extensions a leaf may carry.
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

// countNames counts all subject alternative names, also of the types which the
// standard library's parser skips; -1 when they cannot be read.
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

// texts renders URLs or addresses, an empty list as nil.
func texts[T interface{ String() string }](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// joined renders names as Vault takes them.
func joined(names []string) string { return strings.Join(names, ",") }
