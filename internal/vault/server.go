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
	client  *Client
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
// Vault is unavailable, it keeps the old certificate. A resumed client begins with the saved
// certificate and replaces it as soon as it has logged in.
func (c *Client) ServerCertificate(ctx context.Context) (_ *ServerCertificate, err error) {
	first := c.resumed.Load()
	if first == nil {
		if first, err = c.issueServer(ctx); err != nil {
			return nil, err
		}
	}
	s := &ServerCertificate{client: c}
	s.use(first)
	c.repeat(0, nil, "cannot renew the server certificate", func(ctx context.Context) (time.Duration, error) {
		if wait := untilRenewal(s.Leaf(), time.Now()); wait > 0 && c.resumed.Load() == nil {
			return wait, nil
		}
		next, err := c.issueServer(ctx)
		if err != nil {
			return 0, err
		}
		c.resumed.Store(nil)
		s.use(next)
		c.conf.Log.Info("server certificate renewed", "serial", trust.CertFactsOf(next.Leaf).Serial, "expires", next.Leaf.NotAfter)
		return max(untilRenewal(next.Leaf, time.Now()), minRepeat), nil
	})
	return s, nil
}

// use makes a certificate the current one and saves it.
func (s *ServerCertificate) use(next *tls.Certificate) {
	s.current.Store(next)
	s.client.saving.mu.Lock()
	s.client.saving.server = *next
	s.client.saving.mu.Unlock()
	s.client.keep()
}

// Healthy returns an error if the certificate is that of an earlier process, or if later processes
// could not use this one.
func (s *ServerCertificate) Healthy() error {
	if held := s.client.resumed.Load(); held != nil {
		return unavailable(ReasonResumed, "make Vault available: vault status; the certificate is then replaced",
			"the server certificate is that of an earlier process, because Vault was unavailable at the start; it expires at %s",
			held.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	s.client.saving.mu.Lock()
	defer s.client.saving.mu.Unlock()
	if s.client.saving.err != nil {
		return unavailable(ReasonSaveFails, "give the process write access to GPUAAS_STATE_DIR",
			"the server certificate cannot be saved, so the next start needs Vault: %v", s.client.saving.err)
	}
	return nil
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
