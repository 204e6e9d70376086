package nodeapi

import (
	"context"
	"crypto/ed25519"
	"net/http"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// enroll admits a request for a node's first certificate of an incarnation, with an
// enrollment token and a key that the node generated. It requires no client
// certificate. The claim binds the token to the key, so the same key may repeat the
// request until the certificate's first use.
func (a *certificates) enroll(w http.ResponseWriter, r *http.Request) (i issuance, err error) {
	var req wire.EnrollRequest
	if err := a.admitAnonymous(w, r, &req); err != nil {
		return i, err
	}
	c, csr, err := a.parseToken(r, req.Token, req.CSR, req.AgentVersion)
	if err != nil {
		return i, err
	}
	if c.RecoveryKey, err = parseRecoveryKey(c.NodeID, req); err != nil {
		return i, err
	}
	if c.PreviousKey, err = parsePreviousKey(c.NodeID, c.RecoveryKey, req); err != nil {
		return i, err
	}
	return issuance{csr, priorityOther, func(ctx context.Context) (ClaimResult, error) {
		return a.cfg.Identities.ClaimToken(ctx, c)
	}}, nil
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

// parsePreviousKey returns the recovery key of an earlier enrollment that signed the request,
// nil if the node sent none.
func parsePreviousKey(nodeID string, recovery ed25519.PublicKey, req wire.EnrollRequest) ([]byte, error) {
	if req.PreviousKey == "" && req.PreviousSignature == "" {
		return nil, nil
	}
	key, err := trust.ParseRecoveryKey(req.PreviousKey)
	if err != nil {
		return nil, err
	}
	if !trust.CheckStatement(key, trust.EnrollStatement(nodeID, req.Token, req.CSR, recovery), req.PreviousSignature) {
		return nil, badStatement(schema.KindInvalidRequest)
	}
	return key, nil
}

// badStatement rejects a statement that the recovery key did not sign.
func badStatement(kind schema.Kind) *schema.Error {
	return schema.NewError(kind, "the signature does not match the recovery key, node, token and certificate request").
		WithReason("recovery_signature")
}
