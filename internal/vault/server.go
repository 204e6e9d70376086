package vault

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Renewal of the server certificate: the clock is looked at this often (a
// machine that slept wakes up with an old one), and a failure is tried again
// after these waits.
const (
	serverCheckEvery = time.Hour
	serverRetryMin   = time.Second
	serverRetryMax   = 5 * time.Minute
)

// ServerCertificate is the API's server certificate, always the newest.
type ServerCertificate struct {
	current atomic.Pointer[tls.Certificate]
}

// GetCertificate is for tls.Config.GetCertificate. It never fails and never
// waits.
func (s *ServerCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.current.Load(), nil
}

// Leaf returns the certificate in use.
func (s *ServerCertificate) Leaf() *x509.Certificate { return s.current.Load().Leaf }

// ServerCertificate issues the API's server certificate for the names that Setup
// was told, with a key made here, and keeps it fresh until Close: a new one, with
// a new key, at two thirds of its life. While Vault is away the old one is
// served.
func (c *Client) ServerCertificate(ctx context.Context) (*ServerCertificate, error) {
	first, err := c.issueServer(ctx)
	if err != nil {
		return nil, err
	}
	s := &ServerCertificate{}
	s.current.Store(first)
	c.spawn(func(life context.Context) { c.keepServerFresh(life, s) })
	return s, nil
}

func (c *Client) keepServerFresh(ctx context.Context, s *ServerCertificate) {
	retry := serverRetryMin
	wait := untilRenewal(s.Leaf(), time.Now())
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if untilRenewal(s.Leaf(), time.Now()) <= 0 {
			next, err := c.issueServer(ctx)
			if err != nil {
				c.log.Warn("server certificate not renewed", "expires", s.Leaf().NotAfter, "retry_in", retry, "err", err)
				timer.Reset(retry)
				retry = min(2*retry, serverRetryMax)
				continue
			}
			s.current.Store(next)
			c.log.Info("server certificate renewed", "serial", trust.CertFactsOf(next.Leaf).Serial, "expires", next.Leaf.NotAfter)
		}
		retry = serverRetryMin
		timer.Reset(max(untilRenewal(s.Leaf(), time.Now()), serverRetryMin))
	}
}

// untilRenewal is how long to wait before the next look at the certificate, not
// positive when it is due.
func untilRenewal(leaf *x509.Certificate, now time.Time) time.Duration {
	due := leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 3)
	return min(due.Sub(now), serverCheckEvery)
}

func (c *Client) issueServer(ctx context.Context) (*tls.Certificate, error) {
	dns, ips, err := c.serverNames(ctx)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "making the server's key")
	}
	csrDER, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "making the server's certificate request")
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "making the server's certificate request")
	}
	names := map[string]any{}
	if len(dns) > 0 {
		names["alt_names"] = joined(dns)
	}
	if len(ips) > 0 {
		names["ip_sans"] = joined(ips)
	}
	leaf, chain, err := c.signCSR(ctx, "server_certificate", apiMount, apiRole, csrDER, names)
	if err != nil {
		return nil, err
	}
	want := leafWant{spki: spki, dns: dns, ips: ips, usage: x509.ExtKeyUsageServerAuth, lifetime: serverCertTTL}
	if err := c.checkIssued(ctx, leaf, want, c.apiCAs, apiMount); err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: served(leaf, chain), PrivateKey: key, Leaf: leaf}, nil
}

// served is what a server sends: the leaf and its issuers but the root, which
// the client has.
func served(leaf *x509.Certificate, chain []*x509.Certificate) [][]byte {
	out := [][]byte{leaf.Raw}
	for _, issuer := range chain {
		if issuer.CheckSignatureFrom(issuer) != nil {
			out = append(out, issuer.Raw)
		}
	}
	return out
}

// serverNames reads the names Setup wrote into the role, so that there is one
// place that says them.
func (c *Client) serverNames(ctx context.Context) (dns, ips []string, err error) {
	secret, err := c.call(ctx, "server_names", get(apiMount+"/roles/"+apiRole))
	if errors.Is(err, errAbsent) {
		return nil, nil, schema.NewError(schema.KindInternal, "Vault at %s has no role %s in %s", c.address, apiRole, apiMount).
			WithNext("gpuaas admin setup")
	}
	if err != nil {
		return nil, nil, err
	}
	var role struct {
		AllowedDomains []string `json:"allowed_domains"`
	}
	if err := decode(secret, &role); err != nil {
		return nil, nil, err
	}
	return splitNames(role.AllowedDomains)
}
