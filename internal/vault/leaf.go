package vault

import (
	"bytes"
	"context"
	"crypto/x509"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// leafSpec describes an issued certificate.
type leafSpec struct {
	spki     []byte
	names    []string // all subject alternative names, sorted
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
		return schema.NewError(schema.KindInternal, "discarded a certificate that Vault issued: no live CA of %s verifies it; check this machine's clock", cas.mount)
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

// fault describes the first deviation of a certificate, or returns "". It ignores
// extensions and kinds of names that no verifier of these certificates reads;
// x509.Verify rejects unknown critical extensions.
func (w leafSpec) fault(c *x509.Certificate) string {
	names := slices.Concat(c.DNSNames, c.EmailAddresses)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	switch {
	case !bytes.Equal(c.RawSubjectPublicKeyInfo, w.spki):
		return "another key"
	case !bytes.Equal(c.RawSubject, []byte(trust.EmptyName)):
		return "a subject"
	case !slices.Equal(slices.Sorted(slices.Values(names)), w.names):
		return "other names"
	case c.IsCA || !c.BasicConstraintsValid:
		return "the right to sign certificates"
	case c.KeyUsage != x509.KeyUsageDigitalSignature, !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{w.usage}),
		len(c.UnknownExtKeyUsage) > 0:
		return "other key usages"
	case len(c.IssuingCertificateURL)+len(c.OCSPServer)+len(c.CRLDistributionPoints) > 0:
		return "addresses of the CA, which nodes do not reach"
	case c.NotAfter.Sub(c.NotBefore) > w.lifetime+backdate+time.Minute:
		return "too long a lifetime"
	}
	return ""
}
