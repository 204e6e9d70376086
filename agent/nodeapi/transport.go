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

// idleFor is the time after which an unused connection is closed. A poll uses the most
// recently used connection, so an extra one that other calls opened is closed after
// this time. A running task's progress, every 20 s, still reuses it.
const idleFor = 25 * time.Second

// NewTransport uses only HTTP/1.1. An idle node has one request in progress, its poll,
// so HTTP/2 would only use more memory at the server. TCP keepalive detects a vanished
// peer within 45 s.
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
		TLSHandshakeTimeout: 30 * time.Second, // the API's own limit, for a fleet that reconnects at once
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
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: base.Hostname(), CurrentTime: c.conf.Clock.Now()}
	for _, r := range roots {
		o.Roots.AddCert(r)
	}
	for _, between := range chain[1:] {
		o.Intermediates.AddCert(between)
	}
	_, err = chain[0].Verify(o)
	return err
}
