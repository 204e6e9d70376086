package nodeapi

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// urgentPart is the fraction of a certificate's life, as a divisor, below which
// its renewal is urgent.
const urgentPart = 4

// renew admits a request for an authenticated node's next certificate for a fresh
// key. The current certificate remains valid until the first use of the new one;
// until then the request may be repeated.
func (a *certificates) renew(w http.ResponseWriter, r *http.Request) (i issuance, err error) {
	peer, err := a.verifyPeer(r)
	if err != nil {
		return i, err
	}
	caller, err := a.loadCaller(r, peer)
	if err != nil {
		return i, err
	}
	if err := a.cfg.limit(w, a.renewals, caller.NodeID, "renewal"); err != nil {
		return i, err
	}
	var req wire.RenewRequest
	if err := edge.Decode(r, &req); err != nil {
		return i, err
	}
	if err := checkSequence(req.Sequence); err != nil {
		return i, err
	}
	csr, err := parseCertificateRequest(req.CSR, req.AgentVersion)
	if err != nil {
		return i, err
	}
	if spki(csr) == peer.facts.SPKI {
		return i, invalidRequest("csr_key_in_use", "invalid certificate request: a renewal requires a fresh key")
	}
	return issuance{csr, renewalPriority(peer.facts, a.cfg.Now()), func(ctx context.Context) (ClaimResult, error) {
		return a.cfg.Identities.ClaimRenewal(ctx, RenewClaim{Caller: caller, SPKI: spki(csr), Sequence: req.Sequence,
			CorrelationID: edge.CorrelationID(r.Context())})
	}}, nil
}

func renewalPriority(f trust.CertFacts, now time.Time) priority {
	if f.NotAfter.Sub(now) < f.NotAfter.Sub(f.NotBefore)/urgentPart {
		return priorityUrgent
	}
	return priorityOther
}
