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
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// grant is a claim that was given: what is left is to sign and to store.
type grant struct {
	claimed  ClaimResult
	csr      *x509.CertificateRequest
	via      trust.IssueMethod
	priority priority
}

// issue has the CA sign and puts the certificate into the pending slot. A claim
// outlives every failure from here on, so the same key may ask again: the budget
// is spent, Vault or the database is away, or the answer was lost. A certificate
// that was signed and not stored opens nothing.
func (a *API) issue(w http.ResponseWriter, r *http.Request, g grant) (wire.EnrollResponse, error) {
	var none wire.EnrollResponse
	if wait, ok := a.budget.take(g.priority); !ok {
		return none, limited(w, wait, "budget")
	}
	id := trust.Identity{Env: a.cfg.Env, NodeID: g.claimed.NodeID, Incarnation: g.claimed.Incarnation}
	issued, err := a.cfg.Issuer.Issue(r.Context(), g.csr, id)
	if err != nil {
		return none, unissued(err)
	}
	answer := wire.EnrollResponse{NodeID: id.NodeID, Incarnation: id.Incarnation,
		Certificate: issued.LeafPEM, CAChain: issued.ChainPEM, NotAfter: issued.Facts.NotAfter}
	identity := NewIdentity{NodeID: id.NodeID, Incarnation: id.Incarnation, Via: g.via,
		TokenID: g.claimed.TokenID, Cert: issued.Facts, CorrelationID: edge.CorrelationID(r.Context())}
	if g.claimed.Recoverable {
		answer.RecoveryToken, identity.Recovery = mintRecovery(id.NodeID, a.cfg.Now())
		answer.RecoveryExpiresAt = identity.Recovery.ExpiresAt
	}
	if answer.Sequence, err = a.pend(r.Context(), identity); err != nil {
		return none, a.refused(r, err)
	}
	answer.ServerTime = a.cfg.Now().UTC()
	edge.Annotate(r.Context(), slog.String("serial", issued.Facts.Serial), slog.Int64("incarnation", id.Incarnation),
		slog.Int64("sequence", answer.Sequence))
	return answer, nil
}

func (a *API) pend(ctx context.Context, n NewIdentity) (sequence int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.StorePending(ctx, n)
}

// mintRecovery makes the node's next recovery token. The text goes into the
// answer and nowhere else.
func mintRecovery(nodeID string, now time.Time) (text string, m trust.MintedToken) {
	text, id, hash := trust.NewToken()
	return text, trust.MintedToken{NodeID: nodeID, TokenID: id, Hash: hash, Purpose: trust.PurposeRecover,
		ExpiresAt: now.Add(trust.RecoveryTokenTTL).UTC().Truncate(time.Second)}
}

// unissued says that nothing is lost when Vault did not sign.
func unissued(err error) error {
	if schema.KindOf(err) != schema.KindServiceUnavailable {
		return err
	}
	return schema.Wrap(schema.KindServiceUnavailable, err,
		"no certificate could be issued now; the claim stays with this key, which may ask again")
}

// admitUnknown bounds how often an address, and a node from there, may ask
// without a certificate. The node's own limit is per address, so that a stranger
// who knows a node's id cannot spend it.
func (a *API) admitUnknown(w http.ResponseWriter, r *http.Request) error {
	remote := host(r.RemoteAddr)
	if wait, ok := a.remotes.take(remote); !ok {
		return a.overLimit(w, wait, "remote")
	}
	return a.admitNode(w, r.PathValue("node_id"), remote)
}

// admitNode bounds how often one node asks for an identity.
func (a *API) admitNode(w http.ResponseWriter, nodeID, from string) error {
	if wait, ok := a.nodes.take(nodeID + " " + from); !ok {
		return a.overLimit(w, wait, "node")
	}
	return nil
}

func (a *API) overLimit(w http.ResponseWriter, wait time.Duration, limit string) error {
	a.cfg.Metrics.Limited(limit)
	return limited(w, wait, limit)
}

// limited is the refusal of one that asks too soon.
func limited(w http.ResponseWriter, wait time.Duration, limit string) error {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	return schema.NewError(schema.KindRateLimited, "too many identities are asked for at once (%s); ask again in %d s", limit, seconds).
		WithReason("over_" + limit)
}

// checkAsk checks what the requests for an identity have in common and reads
// their CSR.
func checkAsk(csrPEM, agentVersion string) (*x509.CertificateRequest, error) {
	if !printable(agentVersion, maxVersionLength) {
		return nil, schema.NewError(schema.KindInvalidRequest,
			"agent_version must be at most %d printable characters", maxVersionLength).WithReason("bad_agent_version")
	}
	return parseCSR(csrPEM)
}

func spki(csr *x509.CertificateRequest) string { return schema.SHA256Hex(csr.RawSubjectPublicKeyInfo) }
