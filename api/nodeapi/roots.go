package nodeapi

import (
	"context"
	"crypto/x509"
	"slices"
)

// roots are the live node CAs in the forms that are needed for every request
// and every handshake. They are made once for a set of certificates.
type roots struct {
	certs []*x509.Certificate
	pool  *x509.CertPool
}

// liveRoots asks the issuer each time, so that a CA that is trusted or
// distrusted counts from the next request on.
func (a *API) liveRoots(ctx context.Context) (*roots, error) {
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	certs, err := a.cfg.Issuer.Roots(ctx)
	if err != nil {
		return nil, err
	}
	if held := a.roots.Load(); held != nil && slices.Equal(held.certs, certs) {
		return held, nil
	}
	fresh := &roots{certs: slices.Clone(certs), pool: x509.NewCertPool()}
	for _, c := range certs {
		fresh.pool.AddCert(c)
	}
	a.roots.Store(fresh)
	return fresh, nil
}
