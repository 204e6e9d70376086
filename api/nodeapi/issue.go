package nodeapi

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// certificates issues node certificates.
type certificates struct {
	cfg *Config
	*authenticator
	*refusals
	budget *budget
	// The enrollments of a node, its renewals and recoveries, and the requests
	// without a certificate of a remote address and of a site.
	nodes, renewals, remotes, sites *limiter
}

// issuance is a checked certificate request. Nothing was changed for it yet.
type issuance struct {
	csr      *x509.CertificateRequest
	priority priority // in the issuance budget
	// claim reserves the identity for the CSR's key.
	claim func(context.Context) (ClaimResult, error)
}

// issueHandler returns the handler of one way to obtain a certificate. admit applies
// the rate limits, authenticates the requester if the method requires a certificate,
// and checks the request.
func (a *certificates) issueHandler(method trust.IssueMethod, admit func(http.ResponseWriter, *http.Request) (issuance, error)) edge.Handler {
	serve := func(w http.ResponseWriter, r *http.Request) (none wire.EnrollResponse, err error) {
		i, err := admit(w, r)
		if err != nil {
			return none, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
		defer cancel()
		claimed, err := i.claim(ctx)
		if err != nil {
			return none, a.refused(r, err)
		}
		if err := a.limitIssue(w, method, claimed.NodeID); err != nil {
			return none, err
		}
		if wait, ok := a.budget.take(i.priority); !ok {
			return none, rateLimited(w, wait, "budget")
		}
		return a.issue(r, method, claimed, i.csr)
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		response, err := serve(w, r)
		a.cfg.Metrics.Issued(method, err)
		if err != nil {
			if method != trust.IssuedByRenew {
				a.countRefusal(r, actionOf(method), err)
			}
			return err
		}
		return edge.JSON(w, http.StatusOK, response)
	}
}

// limitIssue limits how often a node requests certificates without one. A recovery counts as a
// renewal: a node whose recovered identity is rejected, as in a restore mode, must not recover
// all the time. Renewals are limited before their claim.
func (a *certificates) limitIssue(w http.ResponseWriter, method trust.IssueMethod, nodeID string) error {
	switch method {
	case trust.IssuedByEnroll:
		return a.cfg.limit(w, a.nodes, nodeID, "node")
	case trust.IssuedByRecover:
		return a.cfg.limit(w, a.renewals, nodeID, "renewal")
	case trust.IssuedByRenew:
	}
	return nil
}

// issue signs a claimed certificate and stores it in the pending slot. The claim
// outlives every failure from here on, so a request with the same key
// may be repeated. A certificate that was signed but not stored is never accepted.
func (a *certificates) issue(r *http.Request, method trust.IssueMethod, claimed ClaimResult, csr *x509.CertificateRequest) (wire.EnrollResponse, error) {
	var none wire.EnrollResponse
	id := trust.Identity{Env: a.cfg.Env, NodeID: claimed.NodeID, Incarnation: claimed.Incarnation}
	issued, err := a.cfg.Issuer.Issue(r.Context(), csr, id)
	if schema.KindOf(err) == schema.KindServiceUnavailable {
		return none, schema.Wrap(schema.KindServiceUnavailable, err,
			"the certificate cannot be issued now; the claim remains valid for this key: repeat the request")
	}
	if err != nil {
		return none, err
	}
	response := wire.EnrollResponse{NodeID: id.NodeID, Incarnation: id.Incarnation,
		Certificate: issued.LeafPEM, CAChain: issued.ChainPEM, NotAfter: issued.Facts.NotAfter}
	identity := NewIdentity{NodeID: id.NodeID, Incarnation: id.Incarnation, Via: method,
		TokenID: claimed.TokenID, Cert: issued.Facts, CorrelationID: edge.CorrelationID(r.Context())}
	if claimed.Recoverable {
		response.RecoveryToken, identity.Recovery = mintRecoveryToken(id.NodeID, claimed.Now)
		response.RecoveryExpiresAt = identity.Recovery.ExpiresAt
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	if response.Sequence, err = a.cfg.Identities.StorePending(ctx, identity); err != nil {
		return none, a.refused(r, err)
	}
	response.ServerTime = a.cfg.Now().UTC()
	edge.Annotate(r.Context(), slog.String("serial", issued.Facts.Serial), slog.Int64("incarnation", id.Incarnation),
		slog.Int64("sequence", response.Sequence))
	return response, nil
}

// mintRecoveryToken mints the node's next recovery token. text goes into the
// response only.
func mintRecoveryToken(nodeID string, now time.Time) (text string, m trust.MintedToken) {
	text, id, hash := trust.NewToken()
	return text, trust.MintedToken{NodeID: nodeID, TokenID: id, Hash: hash, Purpose: trust.PurposeRecover,
		ExpiresAt: now.Add(trust.RecoveryTokenTTL).UTC().Truncate(time.Second)}
}

// admitAnonymous rate-limits a request without a certificate by its remote
// address, and reads its body. The node's own limit counts only requests whose token was
// verified, because any client can name a node in the path.
func (a *certificates) admitAnonymous(w http.ResponseWriter, r *http.Request, body any) error {
	annotatePathNode(r)
	if err := a.limitRemote(w, r); err != nil {
		return err
	}
	return edge.Decode(r, body)
}

// limitRemote bounds how often one remote address, and one IPv6 network of 48 bits, sends
// requests without a certificate. A request over the first limit does not count for the
// second.
func (a *certificates) limitRemote(w http.ResponseWriter, r *http.Request) error {
	edge.SampleRefusal(r.Context())
	host := remoteHost(r)
	if err := a.cfg.limit(w, a.remotes, limitKey(host), "remote"); err != nil {
		return err
	}
	if site := siteOf(host); site != "" {
		return a.cfg.limit(w, a.sites, site, "site")
	}
	return nil
}

// parseToken checks the fields that all requests with a token share.
func (a *certificates) parseToken(r *http.Request, token, csrPEM, agentVersion string) (c TokenClaim, csr *x509.CertificateRequest, err error) {
	if !schema.IsID(r.PathValue("node_id")) {
		return c, nil, invalidRequest("bad_node_id", "the path contains no valid node id")
	}
	c = TokenClaim{NodeID: r.PathValue("node_id"), CorrelationID: edge.CorrelationID(r.Context()),
		AgentVersion: a.cfg.Secrets.Withhold(agentVersion), RemoteAddr: remoteHost(r)}
	if c.TokenID, c.Hash, err = trust.ParseToken(token); err != nil {
		return c, nil, err
	}
	if csr, err = parseCertificateRequest(csrPEM, agentVersion); err != nil {
		return c, nil, err
	}
	c.SPKI = spki(csr)
	return c, csr, nil
}

// parseCertificateRequest checks the fields that all certificate requests share.
func parseCertificateRequest(csrPEM, agentVersion string) (*x509.CertificateRequest, error) {
	if !text.IsPrintable(agentVersion, wire.MaxAgentVersion) {
		return nil, invalidRequest("bad_agent_version", "agent_version must be at most %d printable ASCII characters", wire.MaxAgentVersion)
	}
	return trust.ParseCSR(csrPEM)
}

func checkSequence(n int64) error {
	if n < 0 {
		return invalidRequest("bad_sequence", "sequence must not be negative")
	}
	return nil
}

func spki(csr *x509.CertificateRequest) string { return schema.SHA256Hex(csr.RawSubjectPublicKeyInfo) }
