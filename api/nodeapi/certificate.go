package nodeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// maxIntermediates bounds the verification work that a caller's chain can cause.
const maxIntermediates = 4

// caPool holds the generations of the node CA in the forms that requests and
// handshakes need. One is built per distinct set of certificates.
type caPool struct {
	live, retired []*x509.Certificate
	// roots verify node certificates. retiredRoots only explain a rejection.
	roots, retiredRoots *x509.CertPool
	// hint lists both in the handshake, so that a node with a retired issuer
	// presents its certificate and receives the reason of its rejection.
	hint *x509.CertPool
}

// nodeCAs reads the generations on every call, so that a change applies to the
// next request. It returns the same pool while the certificates are the same.
func (a *authenticator) nodeCAs(ctx context.Context) (*caPool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	live, err := a.cfg.Issuer.Roots(ctx)
	if err != nil {
		return nil, err
	}
	retired, err := a.cfg.Issuer.Retired(ctx)
	if err != nil {
		return nil, err
	}
	if p := a.cas.Load(); p != nil && sameCertificates(p.live, live) && sameCertificates(p.retired, retired) {
		return p, nil
	}
	fresh := &caPool{live: slices.Clone(live), retired: slices.Clone(retired),
		roots: newPool(live), retiredRoots: newPool(retired), hint: newPool(live, retired)}
	a.cas.Store(fresh)
	return fresh, nil
}

func sameCertificates(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}

func newPool(lists ...[]*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range slices.Concat(lists...) {
		p.AddCert(c)
	}
	return p
}

// verifyCertificate verifies the certificate of a connection. The handshake
// proved only that the peer holds its key.
func verifyCertificate(state *tls.ConnectionState, cas *caPool, now time.Time) (verified, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return verified{}, identityError(schema.ReasonNoCertificate, "this endpoint requires a node certificate")
	}
	leaf := state.PeerCertificates[0]
	chain, err := verifyChain(leaf, state.PeerCertificates[1:], cas, now)
	if err != nil {
		return verified{}, err
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return verified{}, identityError(schema.ReasonExpired, "the certificate is valid from %s to %s; the server's time is %s",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if leaf.IsCA || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return verified{}, identityError(schema.ReasonIdentityMismatch, "the certificate is not a TLS client certificate")
	}
	if len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
		return verified{}, identityError(schema.ReasonIdentityMismatch, "the certificate does not name exactly one node")
	}
	id, err := trust.ParseIdentity(leaf.URIs[0])
	if err != nil {
		return verified{}, err
	}
	return newVerified(peer{id: id, facts: trust.CertFactsOf(leaf)}, chain, cas), nil
}

// verifyChain verifies that a live root issued the leaf and returns the chain,
// leaf first. It verifies at a time within the leaf's own dates, so that an
// expired certificate of this system is distinguished from a foreign one.
func verifyChain(leaf *x509.Certificate, others []*x509.Certificate, cas *caPool, now time.Time) ([]*x509.Certificate, error) {
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	opts := x509.VerifyOptions{Roots: cas.roots, Intermediates: x509.NewCertPool(),
		CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, c := range others[:min(len(others), maxIntermediates)] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if err == nil {
		return chains[0], nil
	}
	e := identityError(schema.ReasonUnknownIssuer, "the certificate was not issued by a node CA of this system")
	opts.Roots = cas.retiredRoots
	if _, retired := leaf.Verify(opts); retired == nil {
		e = identityError(schema.ReasonIssuerRetired, "the node CA that issued the certificate is retired")
	} else if cas.madeAfter(leaf) {
		e = identityError(schema.ReasonIssuerRetired, "the node CA that issued the certificate was made again with another key")
	}
	e.Err = err
	return nil, e
}

// madeAfter reports whether a CA with the name of the leaf's issuer, but with another key,
// was made after the leaf. If the leaf is newer, this replica may not have read the CA that
// issued it yet.
func (p *caPool) madeAfter(leaf *x509.Certificate) bool {
	return slices.ContainsFunc(slices.Concat(p.live, p.retired), func(ca *x509.Certificate) bool {
		return bytes.Equal(ca.RawSubject, leaf.RawIssuer) && !bytes.Equal(ca.SubjectKeyId, leaf.AuthorityKeyId) &&
			ca.NotBefore.After(leaf.NotBefore)
	})
}
