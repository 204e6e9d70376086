package nodeapi

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

// recover gives a node that has no usable certificate its next one, for its
// recovery token and a signature of its recovery key. It asks for no client
// certificate. The signature is checked before anything is claimed, so a token
// that leaked opens and spends nothing; the claim binds the token to the CSR's
// key as an enrolment's does.
func (a *API) recover(w http.ResponseWriter, r *http.Request) error {
	answer, err := a.recovered(w, r)
	a.cfg.Metrics.Issued(schema.ViaRecover, err)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func (a *API) recovered(w http.ResponseWriter, r *http.Request) (schema.EnrollAnswer, error) {
	edge.Annotate(r.Context(), slog.String("node_id", safeID(r.PathValue("node_id"))))
	if err := a.admitUnknown(w, r); err != nil {
		return schema.EnrollAnswer{}, err
	}
	req, claim, csr, err := readRecover(w, r)
	if err != nil {
		return schema.EnrollAnswer{}, err
	}
	if err := a.checkRecovery(r.Context(), claim.NodeID, req); err != nil {
		return schema.EnrollAnswer{}, a.refused(r, err)
	}
	claimed, err := a.claimRecovery(r.Context(), claim)
	if err != nil {
		return schema.EnrollAnswer{}, a.refused(r, err)
	}
	return a.issue(w, r, grant{claimed: claimed, csr: csr, via: schema.ViaRecover, priority: priorityRecovery})
}

// checkRecovery checks the signature against the key on record.
func (a *API) checkRecovery(ctx context.Context, nodeID string, req schema.RecoverRequest) error {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	facts, err := a.cfg.Store.RecoveryFacts(ctx, nodeID)
	if err != nil {
		return err
	}
	next := "gpuaas node reissue-enrollment " + nodeID
	if len(facts.Key) == 0 {
		return schema.NewError(schema.KindUnauthenticated, "the node gave no recovery key when it enrolled").
			WithReason("no_recovery_key").WithNext(next)
	}
	statement := schema.RecoverStatement(nodeID, req.Incarnation, req.Sequence, req.Token, req.CSR)
	if !schema.CheckStatement(facts.Key, statement, req.Signature) {
		return schema.NewError(schema.KindUnauthenticated, "the signature is not the recovery key's, over this node, token and request").
			WithReason(reasonSignature).WithNext(next)
	}
	if req.Incarnation != facts.Incarnation {
		return identityError(schema.ReasonIdentityMismatch, "the request is of incarnation %d; the node's is %d", req.Incarnation, facts.Incarnation)
	}
	return nil
}

func (a *API) claimRecovery(ctx context.Context, c schema.RecoveryClaim) (Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.ClaimRecovery(ctx, c)
}

// readRecover reads and checks the whole request but its signature.
func readRecover(w http.ResponseWriter, r *http.Request) (schema.RecoverRequest, schema.RecoveryClaim, *x509.CertificateRequest, error) {
	var req schema.RecoverRequest
	var none schema.RecoveryClaim
	if err := edge.Decode(w, r, &req); err != nil {
		return req, none, nil, err
	}
	nodeID, err := pathNode(r)
	if err != nil {
		return req, none, nil, err
	}
	if err := checkSequence(req.Sequence); err != nil {
		return req, none, nil, err
	}
	tokenID, hash, err := schema.ParseToken(req.Token)
	if err != nil {
		return req, none, nil, err
	}
	csr, err := checkAsk(req.CSR, req.AgentVersion)
	if err != nil {
		return req, none, nil, err
	}
	return req, schema.RecoveryClaim{
		NodeID: nodeID, TokenID: tokenID, Hash: hash, SPKI: spki(csr), Incarnation: req.Incarnation, Sequence: req.Sequence,
		CorrelationID: edge.CorrelationID(r.Context()), AgentVersion: req.AgentVersion, RemoteAddr: host(r.RemoteAddr),
	}, csr, nil
}
