package nodeapi

import (
	"context"
	"crypto/x509"
	"slices"
)

// trust is what is known of the node CA's generations, in the forms that are
// needed for every request and every handshake. It is made once for a set of
// certificates.
type caPool struct {
	live, retired []*x509.Certificate
	// roots verify a node's certificate; former only tell why it is refused.
	roots, former *x509.CertPool
	// named are both: what a handshake names. A node whose issuer is retired
	// shows its certificate all the same, is told so and is logged with it.
	named *x509.CertPool
}

// generations asks the issuer each time, so that a CA that is trusted or
// distrusted counts from the next request on. It returns the very same trust for
// as long as the certificates are the same, however often they were read anew.
func (a *API) generations(ctx context.Context) (*caPool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	live, err := a.cfg.Issuer.Roots(ctx)
	if err != nil {
		return nil, err
	}
	retired, err := a.cfg.Issuer.Retired(ctx)
	if err != nil {
		return nil, err
	}
	if held := a.trust.Load(); held != nil && same(held.live, live) && same(held.retired, retired) {
		return held, nil
	}
	fresh := &caPool{live: slices.Clone(live), retired: slices.Clone(retired),
		roots: pool(live), former: pool(retired), named: pool(live, retired)}
	a.trust.Store(fresh)
	return fresh, nil
}

func same(a, b []*x509.Certificate) bool { return slices.EqualFunc(a, b, (*x509.Certificate).Equal) }

func pool(lists ...[]*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range slices.Concat(lists...) {
		p.AddCert(c)
	}
	return p
}
