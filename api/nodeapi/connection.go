package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// connection is what is remembered of a client's connection: a certificate cannot
// change on it, and a signature is the dearest part of a heartbeat.
type connection struct{ proved atomic.Pointer[proof] }

// proof is a certificate that was found good. It counts for the very trust and
// the very leaf that it was found with, and while each certificate of its chain
// is within its dates.
type proof struct {
	peer        peer
	known       *caPool
	leaf        *x509.Certificate
	from, until time.Time
}

func newProof(p peer, chain []*x509.Certificate, known *caPool) proof {
	out := proof{peer: p, known: known, leaf: chain[0], from: chain[0].NotBefore, until: chain[0].NotAfter}
	for _, c := range chain[1:] {
		if c.NotBefore.After(out.from) {
			out.from = c.NotBefore
		}
		if c.NotAfter.Before(out.until) {
			out.until = c.NotAfter
		}
	}
	return out
}

// holds reports whether the proof says the same as a new check would.
func (p *proof) holds(leaf *x509.Certificate, known *caPool, now time.Time) bool {
	return p.leaf == leaf && p.known == known && !now.Before(p.from) && !now.After(p.until)
}

type connectionKey struct{}

// remembering gives a server's new connection a memory.
func remembering(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, new(connection))
}

// connectionOf returns the memory of the request's connection, or an empty one
// where the server keeps none.
func connectionOf(r *http.Request) *connection {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		return c
	}
	return new(connection)
}

// check is the package's check, made once for as long as its proof holds. A
// refusal is not remembered.
func (c *connection) check(state *tls.ConnectionState, known *caPool, now time.Time) (peer, error) {
	if p := c.proved.Load(); p != nil && state != nil && len(state.PeerCertificates) > 0 && p.holds(state.PeerCertificates[0], known, now) {
		return p.peer, nil
	}
	p, err := check(state, known, now)
	if err != nil {
		return peer{}, err
	}
	c.proved.Store(&p)
	return p.peer, nil
}
