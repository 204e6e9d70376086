package nodeapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"
)

// idleFor is how long a connection that nothing uses stays open. The poll takes
// the one that was used last, so one that was opened beside it for other calls
// goes after this time; a running task's progress, each 20 s, still finds it.
const idleFor = 25 * time.Second

// NewTransport speaks HTTP/1.1 alone. An idle node has one request under way, its
// poll: HTTP/2 would give it nothing but more memory at the server. A peer that
// vanished is found by the system's probes within 45 s.
func NewTransport(conf *tls.Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	dial := net.Dialer{
		Timeout:         15 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3},
	}
	return &http.Transport{
		TLSClientConfig:     conf,
		Protocols:           &protocols,
		DialContext:         dial.DialContext,
		TLSHandshakeTimeout: 30 * time.Second, // as long as the API gives it, when a fleet comes back at once
		IdleConnTimeout:     idleFor,
		MaxIdleConns:        2,
		MaxIdleConnsPerHost: 2,
	}
}

// VerifyChain verifies the server's chain under other roots than those it was
// accepted with.
func (c *Client) VerifyChain(roots, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("the connection names no certificate")
	}
	base, err := url.Parse(c.base)
	if err != nil {
		return err
	}
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: base.Hostname(), CurrentTime: c.clock.Now()}
	for _, r := range roots {
		o.Roots.AddCert(r)
	}
	for _, between := range chain[1:] {
		o.Intermediates.AddCert(between)
	}
	_, err = chain[0].Verify(o)
	return err
}
