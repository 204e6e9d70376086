package vault

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// serverCheckEvery is the longest wait between checks of the certificate's age: a
// machine that was suspended resumes with an old certificate.
const serverCheckEvery = time.Hour

// ServerCertificate is the newest server certificate of the API.
type ServerCertificate struct {
	current atomic.Pointer[tls.Certificate]
}

// GetCertificate is for tls.Config.GetCertificate. It never fails or blocks.
func (s *ServerCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.current.Load(), nil
}

// Leaf returns the certificate in use.
func (s *ServerCertificate) Leaf() *x509.Certificate { return s.current.Load().Leaf }

// ServerCertificate issues the API's server certificate for the names that were
// given to Setup, with a key of this process. Until Close it replaces the
// certificate and the key after two thirds of the certificate's lifetime. While
// Vault is unavailable, it keeps the old certificate.
func (c *Client) ServerCertificate(ctx context.Context) (*ServerCertificate, error) {
	first, err := c.issueServer(ctx)
	if err != nil {
		return nil, err
	}
	s := &ServerCertificate{}
	s.current.Store(first)
	c.repeat(0, nil, "cannot renew the server certificate", func(ctx context.Context) (time.Duration, error) {
		if wait := untilRenewal(s.Leaf(), time.Now()); wait > 0 {
			return wait, nil
		}
		next, err := c.issueServer(ctx)
		if err != nil {
			return 0, err
		}
		s.current.Store(next)
		c.conf.Log.Info("server certificate renewed", "serial", trust.CertFactsOf(next.Leaf).Serial, "expires", next.Leaf.NotAfter)
		return max(untilRenewal(next.Leaf, time.Now()), minRepeat), nil
	})
	return s, nil
}

// untilRenewal returns the time until the next check of the certificate. It is
// not positive if the renewal is due.
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
		return nil, schema.Wrap(schema.KindInternal, err, "generating the server's key")
	}
	csrDER, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "creating the server's certificate request")
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "creating the server's certificate request")
	}
	names := map[string]any{}
	if len(dns) > 0 {
		names["alt_names"] = strings.Join(dns, ",")
	}
	if len(ips) > 0 {
		names["ip_sans"] = strings.Join(ips, ",")
	}
	leaf, chain, err := c.signCSR(ctx, "server_certificate", apiMount, apiRole, csrDER, names)
	if err != nil {
		return nil, err
	}
	want := leafSpec{spki: spki, names: slices.Sorted(slices.Values(slices.Concat(dns, ips))), usage: x509.ExtKeyUsageServerAuth, lifetime: serverCertTTL}
	if err := c.checkIssued(ctx, leaf, want, c.apiCAs); err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: served(leaf, chain), PrivateKey: key, Leaf: leaf}, nil
}

// served returns the certificates that a server sends: the leaf and its issuers
// without the root, which the client has.
func served(leaf *x509.Certificate, chain []*x509.Certificate) [][]byte {
	out := [][]byte{leaf.Raw}
	for _, issuer := range chain {
		if issuer.CheckSignatureFrom(issuer) != nil {
			out = append(out, issuer.Raw)
		}
	}
	return out
}

// serverNames reads the names from the role, where Setup wrote them, so that they
// are configured in one place.
func (c *Client) serverNames(ctx context.Context) (dns, ips []string, err error) {
	role, err := fetch[struct {
		AllowedDomains []string `json:"allowed_domains"`
	}](ctx, c, "server_names", get(apiMount+"/roles/"+apiRole))
	if errors.Is(err, errAbsent) {
		return nil, nil, schema.NewError(schema.KindInternal, "Vault at %s has no role %s in %s", c.address, apiRole, apiMount).
			WithNext("gpuaas admin setup")
	}
	if err != nil {
		return nil, nil, err
	}
	return splitNames(role.AllowedDomains)
}
