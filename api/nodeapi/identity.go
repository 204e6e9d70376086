package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// peer is what a request's certificate proves.
type peer struct {
	id    trust.Identity
	facts trust.CertFacts
}

// authenticate is the check of everything but enrolment: the certificate of the
// connection, then the node's row. It is made for every request and again by
// every poll that wakes.
func (a *API) authenticate(r *http.Request) (Caller, error) {
	p, err := a.identify(r)
	if err != nil {
		return Caller{}, err
	}
	return a.admit(r, p)
}

// identify checks the certificate alone: that it is there, that a live node CA
// issued it, its dates, its use, and that it names the node of the path. What of
// it cannot change is checked once for a connection.
func (a *API) identify(r *http.Request) (peer, error) {
	known, err := a.generations(r.Context())
	if err != nil {
		return peer{}, err
	}
	p, err := connectionOf(r).check(r.TLS, known, a.cfg.Now())
	if err == nil {
		err = a.owns(p.id, r.PathValue("node_id"))
	}
	if err != nil {
		return peer{}, a.refused(r, err)
	}
	edge.Annotate(r.Context(), slog.String("node_id", p.id.NodeID))
	return p, nil
}

// admit checks the node's row.
func (a *API) admit(r *http.Request, p peer) (Caller, error) {
	if a.cfg.Now().After(p.facts.NotAfter) {
		return Caller{}, a.refused(r, identityError(schema.ReasonExpired, "the certificate has expired"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	c, err := a.cfg.Store.Authenticate(ctx, p.id, p.facts)
	if err != nil {
		return Caller{}, a.refused(r, err)
	}
	return c, nil
}

// owns checks that the identity is of this environment and of the path's node.
func (a *API) owns(id trust.Identity, nodeID string) error {
	if id.Env != a.cfg.Env {
		return identityError(schema.ReasonIdentityMismatch, "the certificate is of another environment")
	}
	if id.NodeID != nodeID {
		return identityError(schema.ReasonIdentityMismatch, "the certificate is of another node than the path")
	}
	return nil
}

// refused counts a refused identity and puts the caller's certificate facts
// into the log line. Other errors pass.
func (a *API) refused(r *http.Request, err error) error {
	e := schema.AsError(err)
	if e.Kind != schema.KindInvalidNodeIdentity {
		return err
	}
	a.cfg.Metrics.IdentityRefused(e.Reason)
	edge.Annotate(r.Context(), slog.String("node_id", safeID(r.PathValue("node_id"))))
	logCertificate(r)
	return err
}

// logCertificate puts the facts of the certificate that the caller showed into
// the log line.
func logCertificate(r *http.Request) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		edge.Annotate(r.Context(), slog.Any("certificate", trust.CertFactsOf(r.TLS.PeerCertificates[0])))
	}
}

// safeID is a path's id as the log may have it.
func safeID(id string) string {
	if schema.IsID(id) {
		return id
	}
	return "malformed"
}

// check verifies the certificate a connection presented. The handshake has
// proved that the peer holds its key, and nothing else.
func check(state *tls.ConnectionState, known *caPool, now time.Time) (proof, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return proof{}, identityError(schema.ReasonNoCertificate, "this endpoint needs a node certificate")
	}
	leaf := state.PeerCertificates[0]
	chain, err := checkChain(leaf, state.PeerCertificates[1:], known, now)
	if err != nil {
		return proof{}, err
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return proof{}, identityError(schema.ReasonExpired, "the certificate is valid from %s to %s; the server's clock says %s",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if leaf.IsCA || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return proof{}, identityError(schema.ReasonIdentityMismatch, "the certificate is not one for TLS clients")
	}
	if len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
		return proof{}, identityError(schema.ReasonIdentityMismatch, "the certificate does not name exactly one node")
	}
	id, err := trust.ParseIdentity(leaf.URIs[0])
	if err != nil {
		return proof{}, err
	}
	return newProof(peer{id: id, facts: trust.CertFactsOf(leaf)}, chain, known), nil
}

// checkChain verifies that a live root issued the leaf, at a time within the
// leaf's own dates, so that an expired certificate of ours is told from a
// foreign one, and so is one of a retired root. It returns the chain that it
// found, the leaf first.
func checkChain(leaf *x509.Certificate, others []*x509.Certificate, known *caPool, now time.Time) ([]*x509.Certificate, error) {
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	opts := x509.VerifyOptions{Roots: known.roots, Intermediates: x509.NewCertPool(),
		CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, c := range others[:min(len(others), maxIntermediates)] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(opts)
	if err == nil {
		return chains[0], nil
	}
	e := identityError(schema.ReasonUnknownIssuer, "no node CA of this system issued the certificate")
	opts.Roots = known.former
	if _, retired := leaf.Verify(opts); retired == nil {
		e = identityError(schema.ReasonIssuerRetired, "the node CA that issued the certificate is retired")
	}
	e.Err = err
	return nil, e
}

// maxIntermediates bounds the work a caller's chain can cause.
const maxIntermediates = 4

func identityError(reason, format string, args ...any) *schema.Error {
	return schema.NewError(schema.KindInvalidNodeIdentity, format, args...).WithReason(reason)
}
