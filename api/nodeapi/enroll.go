package nodeapi

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const maxVersionLength = 64

// enroll gives a node its first certificate of an incarnation for a token and a
// key of its own making. It asks for no client certificate. The claim binds the
// token to the key, so the same key may ask again until the certificate's first
// use: after a lost answer, or when Vault was away.
func (a *API) enroll(w http.ResponseWriter, r *http.Request) error {
	answer, err := a.enrolled(w, r)
	a.cfg.Metrics.Issued(trust.IssuedByEnroll, err)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func (a *API) enrolled(w http.ResponseWriter, r *http.Request) (wire.EnrollResponse, error) {
	edge.Annotate(r.Context(), slog.String("node_id", safeID(r.PathValue("node_id"))))
	if err := a.admitUnknown(w, r); err != nil {
		return wire.EnrollResponse{}, err
	}
	claim, csr, err := readEnroll(w, r)
	if err != nil {
		return wire.EnrollResponse{}, err
	}
	claimed, err := a.claim(r.Context(), claim)
	if err != nil {
		return wire.EnrollResponse{}, a.refused(r, err)
	}
	return a.issue(w, r, grant{claimed: claimed, csr: csr, via: trust.IssuedByEnroll, priority: priorityOther})
}

func (a *API) claim(ctx context.Context, c TokenClaim) (ClaimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.ClaimToken(ctx, c)
}

// readEnroll reads and checks the whole request before anything is changed.
func readEnroll(w http.ResponseWriter, r *http.Request) (TokenClaim, *x509.CertificateRequest, error) {
	var req wire.EnrollRequest
	if err := edge.Decode(w, r, &req); err != nil {
		return TokenClaim{}, nil, err
	}
	nodeID, err := pathNode(r)
	if err != nil {
		return TokenClaim{}, nil, err
	}
	tokenID, hash, err := trust.ParseToken(req.Token)
	if err != nil {
		return TokenClaim{}, nil, err
	}
	csr, err := checkAsk(req.CSR, req.AgentVersion)
	if err != nil {
		return TokenClaim{}, nil, err
	}
	recoveryKey, err := recoveryKey(nodeID, req)
	if err != nil {
		return TokenClaim{}, nil, err
	}
	return TokenClaim{
		NodeID: nodeID, TokenID: tokenID, Hash: hash, SPKI: spki(csr), CorrelationID: edge.CorrelationID(r.Context()),
		AgentVersion: req.AgentVersion, RemoteAddr: host(r.RemoteAddr), RecoveryKey: recoveryKey,
	}, csr, nil
}

// recoveryKey returns the recovery key that the node gives, nil for none. Its
// signature proves that whoever holds the key meant this node, token and CSR.
func recoveryKey(nodeID string, req wire.EnrollRequest) ([]byte, error) {
	if req.RecoveryKey == "" && req.Signature == "" {
		return nil, nil
	}
	key, err := trust.ParseRecoveryKey(req.RecoveryKey)
	if err != nil {
		return nil, err
	}
	if !trust.CheckStatement(key, trust.EnrollStatement(nodeID, req.Token, req.CSR, key), req.Signature) {
		return nil, schema.NewError(schema.KindInvalidRequest, "the signature is not the recovery key's, over this node, token and request").
			WithReason(reasonSignature)
	}
	return key, nil
}

// reasonSignature is the reason of a statement that the recovery key did not
// sign.
const reasonSignature = "recovery_signature"

// pathNode returns the path's node id.
func pathNode(r *http.Request) (string, error) {
	id := r.PathValue("node_id")
	if !schema.IsID(id) {
		return "", schema.NewError(schema.KindInvalidRequest, "the path names no node id").WithReason("bad_node_id")
	}
	return id, nil
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
