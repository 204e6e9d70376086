package nodeapi

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// enroll issues a node's first certificate of an incarnation for an enrollment
// token and a key that the node generated. It requires no client certificate.
// The claim binds the token to the key, so the same key may repeat the request
// until the certificate's first use.
func (a *certificates) enroll() edge.Handler {
	return issueHandler(a, issuance[wire.EnrollRequest, TokenClaim]{
		method: trust.IssuedByEnroll, admit: a.admitAnonymous, parse: parseEnroll,
		claim: func(ctx context.Context, c TokenClaim) (ClaimResult, error) {
			return a.cfg.Identities.ClaimToken(ctx, c)
		},
		priority: func(requester) priority { return priorityOther },
	})
}

func parseEnroll(r *http.Request, _ requester, req wire.EnrollRequest) (c TokenClaim, csr *x509.CertificateRequest, err error) {
	nodeID, err := pathNode(r)
	if err != nil {
		return c, nil, err
	}
	tokenID, hash, err := trust.ParseToken(req.Token)
	if err != nil {
		return c, nil, err
	}
	if csr, err = parseCertificateRequest(req.CSR, req.AgentVersion); err != nil {
		return c, nil, err
	}
	recoveryKey, err := parseRecoveryKey(nodeID, req)
	if err != nil {
		return c, nil, err
	}
	return TokenClaim{
		NodeID: nodeID, TokenID: tokenID, Hash: hash, SPKI: spki(csr), CorrelationID: edge.CorrelationID(r.Context()),
		AgentVersion: req.AgentVersion, RemoteAddr: remoteHost(r), RecoveryKey: recoveryKey,
	}, csr, nil
}

// parseRecoveryKey returns the node's recovery key, nil if it sent none. Its
// signature proves that the key's holder meant this node, token and CSR.
func parseRecoveryKey(nodeID string, req wire.EnrollRequest) ([]byte, error) {
	if req.RecoveryKey == "" && req.Signature == "" {
		return nil, nil
	}
	key, err := trust.ParseRecoveryKey(req.RecoveryKey)
	if err != nil {
		return nil, err
	}
	if !trust.CheckStatement(key, trust.EnrollStatement(nodeID, req.Token, req.CSR, key), req.Signature) {
		return nil, badStatement(schema.KindInvalidRequest)
	}
	return key, nil
}

// badStatement rejects a statement that the recovery key did not sign.
func badStatement(kind schema.Kind) *schema.Error {
	return schema.NewError(kind, "the signature does not match the recovery key, node, token and certificate request").
		WithReason("recovery_signature")
}

// pathNode returns the path's node id.
func pathNode(r *http.Request) (string, error) {
	id := r.PathValue("node_id")
	if !schema.IsID(id) {
		return "", invalidRequest("bad_node_id", "the path contains no valid node id")
	}
	return id, nil
}

// remoteHost returns the remote address without its port.
func remoteHost(r *http.Request) string {
	if h, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return h
	}
	return r.RemoteAddr
}
