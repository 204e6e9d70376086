package nodeapi

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync/atomic"
	"time"
)

// certificateCache remembers the verified certificate of one connection: a
// certificate cannot change on a connection, and verifying its signature is the
// most expensive part of a heartbeat. Server installs it with ConnContext;
// without that hook every request verifies its certificate again.
type certificateCache struct {
	last atomic.Pointer[verified]
	conn *connection // nil without the listener's limits
}

// verified is a certificate that passed verifyCertificate. It is valid for the
// same leaf and CA pool while every certificate of its chain is within its dates.
type verified struct {
	peer        peer
	cas         *caPool
	leaf        *x509.Certificate
	from, until time.Time
}

func newVerified(p peer, chain []*x509.Certificate, cas *caPool) verified {
	v := verified{peer: p, cas: cas, leaf: chain[0], from: chain[0].NotBefore, until: chain[0].NotAfter}
	for _, c := range chain[1:] {
		if c.NotBefore.After(v.from) {
			v.from = c.NotBefore
		}
		if c.NotAfter.Before(v.until) {
			v.until = c.NotAfter
		}
	}
	return v
}

// valid reports whether a new verification would have the same result.
func (v *verified) valid(leaf *x509.Certificate, cas *caPool, now time.Time) bool {
	return v.leaf == leaf && v.cas == cas && !now.Before(v.from) && !now.After(v.until)
}

type certificateCacheKey struct{}

// certificateCacheOf returns the cache of the request's connection, or an empty
// one if the server installed none.
func certificateCacheOf(r *http.Request) *certificateCache {
	if c, ok := r.Context().Value(certificateCacheKey{}).(*certificateCache); ok {
		return c
	}
	return new(certificateCache)
}

// verify is verifyCertificate with the cache. It does not cache a rejection.
func (c *certificateCache) verify(state *tls.ConnectionState, cas *caPool, now time.Time) (peer, error) {
	if v := c.last.Load(); v != nil && state != nil && len(state.PeerCertificates) > 0 && v.valid(state.PeerCertificates[0], cas, now) {
		return v.peer, nil
	}
	v, err := verifyCertificate(state, cas, now)
	if err != nil {
		return peer{}, err
	}
	c.last.Store(&v)
	if c.conn != nil {
		c.conn.identify(v.peer.id.URI())
	}
	return v.peer, nil
}
