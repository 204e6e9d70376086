package nodeapi

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// urgentPart is the fraction of a certificate's life, as a divisor, below which
// its renewal is urgent.
const urgentPart = 4

// renew issues an authenticated node's next certificate for a fresh key. The
// current certificate remains valid until the first use of the new one; until
// then the request may be repeated.
func (a *certificates) renew() edge.Handler {
	return issueHandler(a, issuance[wire.RenewRequest, RenewClaim]{
		method: trust.IssuedByRenew, admit: a.admitAuthenticated, parse: parseRenew,
		claim: func(ctx context.Context, c RenewClaim) (ClaimResult, error) {
			return a.cfg.Identities.ClaimRenewal(ctx, c)
		},
		priority: func(from requester) priority { return renewalPriority(from.peer.facts, a.cfg.Now()) },
	})
}

// admitAuthenticated authenticates a node and applies its rate limit.
func (a *certificates) admitAuthenticated(w http.ResponseWriter, r *http.Request) (from requester, err error) {
	if from.peer, err = a.verifyPeer(r); err != nil {
		return from, err
	}
	if from.caller, err = a.loadCaller(r, from.peer); err != nil {
		return from, err
	}
	return from, a.limitNode(w, from.caller.NodeID, "")
}

func parseRenew(r *http.Request, from requester, req wire.RenewRequest) (c RenewClaim, csr *x509.CertificateRequest, err error) {
	if err := checkSequence(req.Sequence); err != nil {
		return c, nil, err
	}
	if csr, err = parseCertificateRequest(req.CSR, req.AgentVersion); err != nil {
		return c, nil, err
	}
	if spki(csr) == from.peer.facts.SPKI {
		return c, nil, invalidRequest("csr_key_in_use", "invalid certificate request: a renewal requires a fresh key")
	}
	return RenewClaim{Caller: from.caller, SPKI: spki(csr), Sequence: req.Sequence,
		CorrelationID: edge.CorrelationID(r.Context())}, csr, nil
}

func renewalPriority(f trust.CertFacts, now time.Time) priority {
	if f.NotAfter.Sub(now) < f.NotAfter.Sub(f.NotBefore)/urgentPart {
		return priorityUrgent
	}
	return priorityOther
}
