package nodeapi

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// authenticator checks the identity of callers.
type authenticator struct {
	cfg *Config
	cas atomic.Pointer[caPool] // of the last request
}

// peer is the identity that a request's certificate proves.
type peer struct {
	id    trust.Identity
	facts trust.CertFacts
}

// authenticate checks the connection's certificate and then the node's row. It
// runs for every request that requires a certificate, and again after every wake
// of a poll.
func (a *authenticator) authenticate(r *http.Request) (Caller, error) {
	p, err := a.verifyPeer(r)
	if err != nil {
		return Caller{}, err
	}
	return a.loadCaller(r, p)
}

// verifyPeer checks the certificate alone: issuer, dates, usage, and that it
// names the node of the path.
func (a *authenticator) verifyPeer(r *http.Request) (peer, error) {
	cas, err := a.nodeCAs(r.Context())
	if err != nil {
		return peer{}, err
	}
	p, err := certificateCacheOf(r).verify(r.TLS, cas, a.cfg.Now())
	if err == nil {
		err = a.checkOwner(p.id, r.PathValue("node_id"))
	}
	if err != nil {
		edge.SampleRefusal(r.Context())
		return peer{}, a.refused(r, err)
	}
	edge.Annotate(r.Context(), slog.String("node_id", p.id.NodeID))
	return p, nil
}

// loadCaller checks the certificate against the node's row.
func (a *authenticator) loadCaller(r *http.Request, p peer) (Caller, error) {
	if a.cfg.Now().After(p.facts.NotAfter) {
		return Caller{}, a.refused(r, identityError(schema.ReasonExpired, "the certificate has expired"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), identityTimeout)
	defer cancel()
	c, err := a.cfg.Identities.Authenticate(ctx, p.id, p.facts)
	if err != nil {
		return Caller{}, a.refused(r, err)
	}
	return c, nil
}

// checkOwner checks that the identity belongs to this environment and to the
// path's node.
func (a *authenticator) checkOwner(id trust.Identity, nodeID string) error {
	if id.Env != a.cfg.Env {
		return identityError(schema.ReasonIdentityMismatch, "the certificate belongs to another environment")
	}
	if id.NodeID != nodeID {
		return identityError(schema.ReasonIdentityMismatch, "the certificate belongs to another node than the one in the path")
	}
	return nil
}

// refused counts a rejected identity and adds the certificate's facts to the
// request's log line. It returns err, and ignores errors of other kinds.
func (a *authenticator) refused(r *http.Request, err error) error {
	e := schema.AsError(err)
	if e.Kind != schema.KindInvalidNodeIdentity {
		return err
	}
	a.cfg.Metrics.IdentityRefused(e.Reason)
	annotatePathNode(r)
	annotateCertificate(r)
	return err
}

// annotateCertificate adds the facts of the presented certificate to the log
// line.
func annotateCertificate(r *http.Request) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		edge.Annotate(r.Context(), slog.Any("certificate", trust.CertFactsOf(r.TLS.PeerCertificates[0])))
	}
}

// annotatePathNode adds the path's node id to the log line, unless it is
// malformed.
func annotatePathNode(r *http.Request) {
	edge.Annotate(r.Context(), slog.String("node_id", pathNode(r)))
}

// pathNode returns the path's node id, "malformed" if it is none, and "" if the path has
// no node.
func pathNode(r *http.Request) string {
	id := r.PathValue("node_id")
	if id != "" && !schema.IsID(id) {
		return "malformed"
	}
	return id
}

func identityError(reason, format string, args ...any) *schema.Error {
	return schema.NewError(schema.KindInvalidNodeIdentity, format, args...).WithReason(reason)
}
