package nodeapi

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// urgentPart is the part of a certificate's life below which its renewal is
// urgent.
const urgentPart = 4

// renew gives an authenticated node its next certificate, for a fresh key. The
// certificate in use stays good until the new one's first use, and the same
// request may be made again until then.
func (a *API) renew(w http.ResponseWriter, r *http.Request) error {
	answer, err := a.renewed(w, r)
	a.cfg.Metrics.Issued(trust.IssuedByRenew, err)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func (a *API) renewed(w http.ResponseWriter, r *http.Request) (wire.EnrollResponse, error) {
	var none wire.EnrollResponse
	p, err := a.identify(r)
	if err != nil {
		return none, err
	}
	caller, err := a.admit(r, p)
	if err != nil {
		return none, err
	}
	if err := a.admitNode(w, caller.NodeID, ""); err != nil {
		return none, err
	}
	req, csr, err := readRenew(w, r, p)
	if err != nil {
		return none, err
	}
	claimed, err := a.claimRenewal(r.Context(), RenewClaim{Caller: caller, SPKI: spki(csr), Sequence: req.Sequence,
		CorrelationID: edge.CorrelationID(r.Context())})
	if err != nil {
		return none, a.refused(r, err)
	}
	return a.issue(w, r, grant{claimed: claimed, csr: csr, via: trust.IssuedByRenew, priority: urgency(p.facts, a.cfg.Now())})
}

func (a *API) claimRenewal(ctx context.Context, c RenewClaim) (ClaimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	return a.cfg.Store.ClaimRenewal(ctx, c)
}

func readRenew(w http.ResponseWriter, r *http.Request, p peer) (wire.RenewRequest, *x509.CertificateRequest, error) {
	var req wire.RenewRequest
	if err := edge.Decode(w, r, &req); err != nil {
		return req, nil, err
	}
	if err := checkSequence(req.Sequence); err != nil {
		return req, nil, err
	}
	csr, err := checkAsk(req.CSR, req.AgentVersion)
	if err != nil {
		return req, nil, err
	}
	if spki(csr) == p.facts.SPKI {
		return req, nil, csrError("csr_key_in_use", "a renewal needs a fresh key")
	}
	return req, csr, nil
}

// urgency is the priority of renewing a certificate.
func urgency(f trust.CertFacts, now time.Time) priority {
	if f.NotAfter.Sub(now) < f.NotAfter.Sub(f.NotBefore)/urgentPart {
		return priorityUrgent
	}
	return priorityOther
}

func checkSequence(n int64) error {
	if n < 0 {
		return schema.NewError(schema.KindInvalidRequest, "sequence must not be negative").WithReason("bad_sequence")
	}
	return nil
}
