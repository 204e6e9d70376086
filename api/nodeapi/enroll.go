package nodeapi

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

const maxVersionLength = 64

// enroll gives a node its first certificate for a token and a key of its own
// making. It asks for no client certificate. The claim binds the token to the
// key, so the same key may ask again until the certificate's first use: after a
// lost answer, or when Vault was away.
func (a *API) enroll(w http.ResponseWriter, r *http.Request) error {
	answer, err := a.enrolled(w, r)
	a.cfg.Metrics.Enrollment(err)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func (a *API) enrolled(w http.ResponseWriter, r *http.Request) (schema.EnrollAnswer, error) {
	edge.Annotate(r.Context(), slog.String("node_id", safeID(r.PathValue("node_id"))))
	claim, csr, err := readEnroll(w, r)
	if err != nil {
		return schema.EnrollAnswer{}, err
	}
	claimed, err := a.claim(r.Context(), claim)
	if err != nil {
		return schema.EnrollAnswer{}, err
	}
	id := schema.Identity{Env: a.cfg.Env, NodeID: claimed.NodeID, Incarnation: claimed.Incarnation}
	issued, err := a.cfg.Issuer.Issue(r.Context(), csr, id)
	if err != nil {
		return schema.EnrollAnswer{}, unissued(err)
	}
	sequence, err := a.pend(r.Context(), claimed, issued)
	if err != nil {
		return schema.EnrollAnswer{}, err
	}
	edge.Annotate(r.Context(), slog.String("serial", issued.Facts.Serial), slog.Int64("incarnation", claimed.Incarnation))
	return schema.EnrollAnswer{NodeID: claimed.NodeID, Incarnation: claimed.Incarnation,
		Certificate: issued.LeafPEM, CAChain: issued.ChainPEM, NotAfter: issued.Facts.NotAfter,
		Sequence: sequence, ServerTime: time.Now().UTC()}, nil
}

func (a *API) claim(ctx context.Context, c TokenClaim) (Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.ClaimToken(ctx, c)
}

func (a *API) pend(ctx context.Context, c Claimed, i Issued) (sequence int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.StorePending(ctx, schema.NewIdentity{NodeID: c.NodeID, Incarnation: c.Incarnation, Via: schema.ViaEnroll,
		TokenID: c.TokenID, Cert: i.Facts, CorrelationID: edge.CorrelationID(ctx)})
}

// unissued says that nothing is lost when Vault did not sign.
func unissued(err error) error {
	if schema.KindOf(err) != schema.KindServiceUnavailable {
		return err
	}
	return schema.Wrap(schema.KindServiceUnavailable, err,
		"no certificate could be issued now; the token stays claimed by this key, which may ask again")
}

// readEnroll reads and checks the whole request before anything is changed.
func readEnroll(w http.ResponseWriter, r *http.Request) (TokenClaim, *x509.CertificateRequest, error) {
	var req schema.EnrollRequest
	if err := edge.Decode(w, r, &req); err != nil {
		return TokenClaim{}, nil, err
	}
	nodeID := r.PathValue("node_id")
	if !schema.IsID(nodeID) {
		return TokenClaim{}, nil, schema.NewError(schema.KindInvalidRequest, "the path names no node id").WithReason("bad_node_id")
	}
	if !printable(req.AgentVersion, maxVersionLength) {
		return TokenClaim{}, nil, schema.NewError(schema.KindInvalidRequest,
			"agent_version must be at most %d printable characters", maxVersionLength).WithReason("bad_agent_version")
	}
	tokenID, hash, err := schema.ParseToken(req.Token)
	if err != nil {
		return TokenClaim{}, nil, err
	}
	csr, err := parseCSR(req.CSR)
	if err != nil {
		return TokenClaim{}, nil, err
	}
	return TokenClaim{
		NodeID: nodeID, TokenID: tokenID, Hash: hash, SPKI: schema.SPKIHash(csr.RawSubjectPublicKeyInfo),
		CorrelationID: edge.CorrelationID(r.Context()), AgentVersion: req.AgentVersion, RemoteAddr: host(r.RemoteAddr),
	}, csr, nil
}

func printable(s string, most int) bool {
	if len(s) > most {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func host(remote string) string {
	if h, _, err := net.SplitHostPort(remote); err == nil {
		return h
	}
	return remote
}
