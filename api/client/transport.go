package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

// dialTime bounds the time in which a connection is opened.
const dialTime = 30 * time.Second

// headerTime bounds the wait for the header of a response. The API waits at most 40 seconds for a
// workflow.
const headerTime = 50 * time.Second

// maxSilence bounds the time in which nothing arrives on a connection, so that a server that stops in
// the middle of a response does not hold its reader. The API sends a comment every 15 seconds to a
// stream of events, and idle connections are closed after 90 seconds.
const maxSilence = 2 * time.Minute

// dialFunc opens a connection; see [http.Transport.DialContext].
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newTransport returns a transport whose reads have a deadline; nil roots are those of the system.
func newTransport(dial dialFunc, roots *x509.CertPool) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() // which keeps ForceAttemptHTTP2
	t.ResponseHeaderTimeout = headerTime
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return boundConn{c}, nil
	}
	return t
}

// boundConn is a connection whose reads end after maxSilence without data in either direction.
type boundConn struct{ net.Conn }

// Read reads with a new deadline.
func (c boundConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(maxSilence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write gives the read that waits for the response a new deadline, because it began when the
// connection became idle.
func (c boundConn) Write(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(maxSilence)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
