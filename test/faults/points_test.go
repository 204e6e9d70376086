package faults_test

import (
	"context"
	"crypto/x509"
	"net/http"
	"sync"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// point is a commit point in the API's code: before it nothing has changed, after it
// the change is durable.
type point string

// The commit points of enrollment, renewal, recovery and promotion.
const (
	atClaim        point = "claim" // of an enrollment or reissue token
	atClaimRenewal point = "claim-renewal"
	atClaimRecover point = "claim-recovery"
	atSign         point = "sign"
	atPend         point = "pend"    // the certificate and recovery token are stored
	atPromote      point = "promote" // the row is read and, at a first use, changed
	atPolled       point = "polled"
)

// points injects faults and checks the guarantees about tokens and keys.
type points struct {
	mu    sync.Mutex
	armed map[point]kind
	hit   []kind
	// crash stops the process that reached the point.
	crash func()

	token map[string]string // token → key that claimed it
	key   map[string]string // key → node that it was signed for
	wrong []string
}

func newPoints(crash func()) *points {
	return &points{armed: map[point]kind{}, crash: crash, token: map[string]string{}, key: map[string]string{}}
}

func (p *points) arm(at point, m kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed[at] = m
}

func (p *points) disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.armed)
}

// happened returns the points reached since the last call.
func (p *points) happened() []kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.hit
	p.hit = nil
	return out
}

// pass runs do with the point's fault, if armed.
func (p *points) pass(at point, do func() error) error {
	p.mu.Lock()
	m := p.armed[at]
	delete(p.armed, at)
	if m != "" {
		p.hit = append(p.hit, m)
	}
	p.mu.Unlock()
	switch m {
	case kindCrashBefore:
		p.die()
	case kindDBBefore:
		return errDatabase()
	}
	err := do()
	switch m {
	case kindCrashAfter:
		p.die()
	case kindDBAfter:
		return errDatabase()
	}
	return err
}

// die stops the process: it sends no more responses.
func (p *points) die() {
	p.crash()
	panic(http.ErrAbortHandler)
}

func errDatabase() error {
	return schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")
}

// given records that a token was accepted for a key.
func (p *points) given(tokenID, spki string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := p.token[tokenID]; ok && held != spki {
		p.wrong = append(p.wrong, "token "+tokenID+" was accepted for two keys")
	}
	p.token[tokenID] = spki
}

// signed records that a certificate was issued for a key.
func (p *points) signed(spki string, id trust.Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := p.key[spki]; ok && held != id.NodeID {
		p.wrong = append(p.wrong, "key "+spki+" was signed for two nodes")
	}
	p.key[spki] = id.NodeID
}

// broken returns the first violation of a guarantee.
func (p *points) broken() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wrong) > 0 {
		return p.wrong[0]
	}
	return ""
}

// pointStore is the real store with points around its changes.
type pointStore struct {
	nodeStore
	points *points
}

func (s pointStore) Authenticate(ctx context.Context, id trust.Identity, cert trust.CertFacts) (c nodeapi.Caller, err error) {
	err = s.points.pass(atPromote, func() error { c, err = s.nodeStore.Authenticate(ctx, id, cert); return err })
	return c, err
}

func (s pointStore) Heartbeat(ctx context.Context, c nodeapi.Caller, h wire.Heartbeat) error {
	return s.points.pass(atPolled, func() error { return s.nodeStore.Heartbeat(ctx, c, h) })
}

func (s pointStore) RecordPoll(ctx context.Context, c nodeapi.Caller, poll wire.PollRequest) error {
	return s.points.pass(atPolled, func() error { return s.nodeStore.RecordPoll(ctx, c, poll) })
}

func (s pointStore) ClaimToken(ctx context.Context, t nodeapi.TokenClaim) (c nodeapi.ClaimResult, err error) {
	err = s.points.pass(atClaim, func() error {
		if c, err = s.nodeStore.ClaimToken(ctx, t); err == nil {
			s.points.given(t.TokenID, t.SPKI)
		}
		return err
	})
	return c, err
}

func (s pointStore) ClaimRenewal(ctx context.Context, r nodeapi.RenewClaim) (c nodeapi.ClaimResult, err error) {
	err = s.points.pass(atClaimRenewal, func() error { c, err = s.nodeStore.ClaimRenewal(ctx, r); return err })
	return c, err
}

func (s pointStore) ClaimRecovery(ctx context.Context, r nodeapi.RecoveryClaim) (c nodeapi.ClaimResult, err error) {
	err = s.points.pass(atClaimRecover, func() error {
		if c, err = s.nodeStore.ClaimRecovery(ctx, r); err == nil {
			s.points.given(r.TokenID, r.SPKI)
		}
		return err
	})
	return c, err
}

func (s pointStore) StorePending(ctx context.Context, n nodeapi.NewIdentity) (seq int64, err error) {
	err = s.points.pass(atPend, func() error { seq, err = s.nodeStore.StorePending(ctx, n); return err })
	return seq, err
}

// pointIssuer is an issuer with points around its signature.
type pointIssuer struct {
	nodeapi.Issuer
	points *points
}

func (i pointIssuer) Issue(ctx context.Context, csr *x509.CertificateRequest, id trust.Identity) (out trust.IssuedCertificate, err error) {
	err = i.points.pass(atSign, func() error {
		if out, err = i.Issuer.Issue(ctx, csr, id); err == nil {
			i.points.signed(out.Facts.SPKI, id)
		}
		return err
	})
	return out, err
}
