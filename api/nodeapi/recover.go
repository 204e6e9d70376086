package nodeapi

import (
	"context"
	"crypto/x509"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// signedRecovery is a parsed recovery request whose signature is still to be
// verified against the node's row.
type signedRecovery struct {
	claim   RecoveryClaim
	request wire.RecoverRequest
}

// recover issues the next certificate of a node without a usable one, for its
// recovery token and a signature by its recovery key. It requires no client
// certificate. The signature is verified before anything is claimed, so a leaked
// token alone is useless and cannot be consumed.
func (a *certificates) recover() edge.Handler {
	return issueHandler(a, issuance[wire.RecoverRequest, signedRecovery]{
		method: trust.IssuedByRecover, admit: a.admitAnonymous, parse: parseRecover, claim: a.claimRecovery,
		priority: func(requester) priority { return priorityRecovery },
	})
}

func parseRecover(r *http.Request, _ requester, req wire.RecoverRequest) (s signedRecovery, csr *x509.CertificateRequest, err error) {
	nodeID, err := pathNode(r)
	if err != nil {
		return s, nil, err
	}
	if err := checkSequence(req.Sequence); err != nil {
		return s, nil, err
	}
	tokenID, hash, err := trust.ParseToken(req.Token)
	if err != nil {
		return s, nil, err
	}
	if csr, err = parseCertificateRequest(req.CSR, req.AgentVersion); err != nil {
		return s, nil, err
	}
	return signedRecovery{request: req, claim: RecoveryClaim{
		NodeID: nodeID, TokenID: tokenID, Hash: hash, SPKI: spki(csr), Incarnation: req.Incarnation, Sequence: req.Sequence,
		CorrelationID: edge.CorrelationID(r.Context()), AgentVersion: req.AgentVersion, RemoteAddr: remoteHost(r),
	}}, csr, nil
}

// claimRecovery verifies the signature against the recovery key on record and
// claims the token.
func (a *certificates) claimRecovery(ctx context.Context, s signedRecovery) (none ClaimResult, err error) {
	nodeID, req := s.claim.NodeID, s.request
	facts, err := a.cfg.Identities.RecoveryFacts(ctx, nodeID)
	if err != nil {
		return none, err
	}
	next := "gpuaas node reissue-enrollment " + nodeID
	if len(facts.Key) == 0 {
		return none, schema.NewError(schema.KindUnauthenticated, "the node has no recovery key").
			WithReason("no_recovery_key").WithNext(next)
	}
	statement := trust.RecoverStatement(nodeID, req.Incarnation, req.Sequence, req.Token, req.CSR)
	if !trust.CheckStatement(facts.Key, statement, req.Signature) {
		return none, badStatement(schema.KindUnauthenticated).WithNext(next)
	}
	if req.Incarnation != facts.Incarnation {
		return none, identityError(schema.ReasonIdentityMismatch, "the request is for incarnation %d; the node's is %d",
			req.Incarnation, facts.Incarnation)
	}
	return a.cfg.Identities.ClaimRecovery(ctx, s.claim)
}
