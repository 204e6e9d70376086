package nodeapi

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// recover gives a node that has no usable certificate its next one, for its
// recovery token and a signature of its recovery key. It asks for no client
// certificate. The signature is checked before anything is claimed, so a token
// that leaked opens and spends nothing; the claim binds the token to the CSR's
// key as an enrolment's does.
func (a *API) recover(w http.ResponseWriter, r *http.Request) error {
	answer, err := a.recovered(w, r)
	a.cfg.Metrics.Issued(trust.IssuedByRecover, err)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func (a *API) recovered(w http.ResponseWriter, r *http.Request) (wire.EnrollResponse, error) {
	edge.Annotate(r.Context(), slog.String("node_id", safeID(r.PathValue("node_id"))))
	if err := a.admitUnknown(w, r); err != nil {
		return wire.EnrollResponse{}, err
	}
	req, claim, csr, err := readRecover(w, r)
	if err != nil {
		return wire.EnrollResponse{}, err
	}
	if err := a.checkRecovery(r.Context(), claim.NodeID, req); err != nil {
		return wire.EnrollResponse{}, a.refused(r, err)
	}
	claimed, err := a.claimRecovery(r.Context(), claim)
	if err != nil {
		return wire.EnrollResponse{}, a.refused(r, err)
	}
	return a.issue(w, r, grant{claimed: claimed, csr: csr, via: trust.IssuedByRecover, priority: priorityRecovery})
}

// checkRecovery checks the signature against the key on record.
func (a *API) checkRecovery(ctx context.Context, nodeID string, req wire.RecoverRequest) error {
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
	statement := trust.RecoverStatement(nodeID, req.Incarnation, req.Sequence, req.Token, req.CSR)
	if !trust.CheckStatement(facts.Key, statement, req.Signature) {
		return schema.NewError(schema.KindUnauthenticated, "the signature is not the recovery key's, over this node, token and request").
			WithReason(reasonSignature).WithNext(next)
	}
	if req.Incarnation != facts.Incarnation {
		return identityError(schema.ReasonIdentityMismatch, "the request is of incarnation %d; the node's is %d", req.Incarnation, facts.Incarnation)
	}
	return nil
}

func (a *API) claimRecovery(ctx context.Context, c RecoveryClaim) (ClaimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.ClaimRecovery(ctx, c)
}

// readRecover reads and checks the whole request but its signature.
func readRecover(w http.ResponseWriter, r *http.Request) (wire.RecoverRequest, RecoveryClaim, *x509.CertificateRequest, error) {
	var req wire.RecoverRequest
	var none RecoveryClaim
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
	tokenID, hash, err := trust.ParseToken(req.Token)
	if err != nil {
		return req, none, nil, err
	}
	csr, err := checkAsk(req.CSR, req.AgentVersion)
	if err != nil {
		return req, none, nil, err
	}
	return req, RecoveryClaim{
		NodeID: nodeID, TokenID: tokenID, Hash: hash, SPKI: spki(csr), Incarnation: req.Incarnation, Sequence: req.Sequence,
		CorrelationID: edge.CorrelationID(r.Context()), AgentVersion: req.AgentVersion, RemoteAddr: host(r.RemoteAddr),
	}, csr, nil
}
