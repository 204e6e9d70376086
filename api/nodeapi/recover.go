package nodeapi

import (
	"context"
	"net/http"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// recover admits a request for the next certificate of a node without a usable one,
// with its recovery token and a signature by its recovery key. It requires no client
// certificate. The signature is verified before anything is claimed, so a leaked
// token alone is useless and cannot be consumed.
func (a *certificates) recover(w http.ResponseWriter, r *http.Request) (i issuance, err error) {
	var req wire.RecoverRequest
	if err := a.admitAnonymous(w, r, &req); err != nil {
		return i, err
	}
	if err := checkSequence(req.Sequence); err != nil {
		return i, err
	}
	c, csr, err := a.parseToken(r, req.Token, req.CSR, req.AgentVersion)
	if err != nil {
		return i, err
	}
	return issuance{csr, priorityRecovery, func(ctx context.Context) (none ClaimResult, err error) {
		if err := a.checkRecovery(ctx, c.NodeID, req); err != nil {
			return none, err
		}
		return a.cfg.Identities.ClaimRecovery(ctx, RecoveryClaim{TokenClaim: c, Incarnation: req.Incarnation, Sequence: req.Sequence})
	}}, nil
}

// checkRecovery verifies the request's signature with the recovery key on record.
func (a *certificates) checkRecovery(ctx context.Context, nodeID string, req wire.RecoverRequest) error {
	facts, err := a.cfg.Identities.RecoveryFacts(ctx, nodeID)
	if err != nil {
		return err
	}
	next := "gpuaas node reissue-enrollment " + nodeID
	if len(facts.Key) == 0 {
		return schema.NewError(schema.KindUnauthenticated, "the node has no recovery key").
			WithReason("no_recovery_key").WithNext(next)
	}
	statement := trust.RecoverStatement(nodeID, req.Incarnation, req.Sequence, req.Token, req.CSR)
	if !trust.CheckStatement(facts.Key, statement, req.Signature) {
		return badStatement(schema.KindUnauthenticated).WithNext(next)
	}
	if req.Incarnation != facts.Incarnation {
		return identityError(schema.ReasonIdentityMismatch, "the request is for incarnation %d; the node's is %d",
			req.Incarnation, facts.Incarnation)
	}
	return nil
}
