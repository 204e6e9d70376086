package nodeapi

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const maxVersionLength = 64

// certificates issues node certificates.
type certificates struct {
	cfg Config
	*authenticator
	budget         *budget
	nodes, remotes *limiter // requests of a node and of a remote address
}

// issuance is one way to obtain a certificate: enrollment, renewal or recovery.
// Req is the request body, Claim the checked request.
type issuance[Req, Claim any] struct {
	method trust.IssueMethod
	// admit rate-limits the requester and authenticates it if the method requires
	// a certificate. It runs before the body is read.
	admit func(http.ResponseWriter, *http.Request) (requester, error)
	// parse checks the whole request before anything is changed.
	parse func(*http.Request, requester, Req) (Claim, *x509.CertificateRequest, error)
	// claim reserves the identity for the CSR's key.
	claim func(context.Context, Claim) (ClaimResult, error)
	// priority is the request's class in the issuance budget.
	priority func(requester) priority
}

// requester is who requests a certificate; peer and caller are set if it
// authenticated with one.
type requester struct {
	peer   peer
	caller Caller
}

// issueHandler returns the handler of one way to obtain a certificate: admit,
// parse, claim, sign, store.
func issueHandler[Req, Claim any](a *certificates, i issuance[Req, Claim]) edge.Handler {
	serve := func(w http.ResponseWriter, r *http.Request) (none wire.EnrollResponse, err error) {
		from, err := i.admit(w, r)
		if err != nil {
			return none, err
		}
		var req Req
		if err := edge.Decode(w, r, &req); err != nil {
			return none, err
		}
		claim, csr, err := i.parse(r, from, req)
		if err != nil {
			return none, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
		defer cancel()
		claimed, err := i.claim(ctx, claim)
		if err != nil {
			return none, a.refused(r, err)
		}
		if wait, ok := a.budget.take(i.priority(from)); !ok {
			return none, rateLimited(w, wait, "budget")
		}
		return a.issue(r, i.method, claimed, csr)
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		response, err := serve(w, r)
		a.cfg.Metrics.Issued(i.method, err)
		if err != nil {
			return err
		}
		return edge.JSON(w, http.StatusOK, response)
	}
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
		response.RecoveryToken, identity.Recovery = mintRecoveryToken(id.NodeID, a.cfg.Now())
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
// address and by node. The node's limit is per address, so a client at
// another address cannot exhaust it.
func (a *certificates) admitAnonymous(w http.ResponseWriter, r *http.Request) (requester, error) {
	annotatePathNode(r)
	if err := a.limitRemote(w, r); err != nil {
		return requester{}, err
	}
	return requester{}, a.limitNode(w, r.PathValue("node_id"), remoteHost(r))
}

// limitRemote bounds how often one remote address sends requests without a
// certificate.
func (a *certificates) limitRemote(w http.ResponseWriter, r *http.Request) error {
	if wait, ok := a.remotes.take(remoteHost(r)); !ok {
		a.cfg.Metrics.Limited("remote")
		return rateLimited(w, wait, "remote")
	}
	return nil
}

// limitNode bounds how often one node requests a certificate.
func (a *certificates) limitNode(w http.ResponseWriter, nodeID, remote string) error {
	if wait, ok := a.nodes.take(nodeID + " " + remote); !ok {
		a.cfg.Metrics.Limited("node")
		return rateLimited(w, wait, "node")
	}
	return nil
}

// rateLimited rejects a request and sets Retry-After.
func rateLimited(w http.ResponseWriter, wait time.Duration, limit string) error {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	return schema.NewError(schema.KindRateLimited, "too many certificate requests (%s limit); retry in %d s", limit, seconds).
		WithReason("over_" + limit)
}

// parseCertificateRequest checks the fields that all certificate requests share.
func parseCertificateRequest(csrPEM, agentVersion string) (*x509.CertificateRequest, error) {
	if !text.IsPrintable(agentVersion, maxVersionLength) {
		return nil, invalidRequest("bad_agent_version", "agent_version must be at most %d printable ASCII characters", maxVersionLength)
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
