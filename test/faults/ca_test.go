package faults_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// century is the validity of the CAs before and after epoch.
const century = 100 * 365 * 24 * time.Hour

// backdate is how long before its issue a certificate becomes valid.
const backdate = 5 * time.Minute

// generation is one CA.
type generation struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	r    *mathrand.Rand // draws serials, on which agents' renewals depend
}

func newGeneration(name string, r *mathrand.Rand) (*generation, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: epoch.Add(-century), NotAfter: epoch.Add(century), SerialNumber: big.NewInt(1)}
	g := &generation{key: key, cert: template, r: r}
	g.cert, err = g.sign(template, key.Public())
	return g, err
}

func (g *generation) sign(template *x509.Certificate, key any) (*x509.Certificate, error) {
	n := make([]byte, 18)
	for i := range n {
		n[i] = byte(g.r.Uint32())
	}
	template.SerialNumber = new(big.Int).SetBytes(n)
	der, err := x509.CreateCertificate(rand.Reader, template, g.cert, key, g.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func (g *generation) pem() string { return certPEM(g.cert) }

func certPEM(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// serverCert creates the node API's certificate. It is valid as long as its CA, so
// that a node whose clock is off by a year can still connect.
func (g *generation) serverCert() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := g.sign(&x509.Certificate{DNSNames: []string{serverName}, NotBefore: epoch.Add(-century), NotAfter: epoch.Add(century),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, key.Public())
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}, nil
}

const serverName = "node-api.test"

// authority is an in-memory node CA that replaces Vault. It issues from its newest
// generation, sets every field, and can be sealed.
type authority struct {
	clock *clock
	ttl   time.Duration

	r       *mathrand.Rand
	mu      sync.Mutex
	live    []*generation // oldest first; the last one signs
	retired []*generation // retired after an overlap
	made    int
	sealed  bool
	issued  int
}

func newAuthority(c *clock, r *mathrand.Rand) (*authority, error) {
	a := &authority{clock: c, r: r, ttl: trust.CertTTL}
	if err := a.replace(false); err != nil {
		return nil, err
	}
	return a, nil
}

// replace adds a generation with a new name and, unless keep, distrusts the others.
func (a *authority) replace(keep bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made++
	g, err := newGeneration(fmt.Sprintf("node CA generation %d", a.made), a.r)
	if err != nil {
		return err
	}
	if !keep {
		a.live = nil
	}
	a.live = append(a.live, g)
	return nil
}

// distrustOld retires all generations except the newest, like the end of a regular
// rotation. A CA that was replaced without overlap is deleted.
func (a *authority) distrustOld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest := len(a.live) - 1
	a.retired, a.live = append(a.retired, a.live[:newest]...), a.live[newest:]
}

func (a *authority) seal(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sealed = on
}

// Issue implements nodeapi.Issuer.
func (a *authority) Issue(_ context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var none trust.IssuedCertificate
	if a.sealed {
		return none, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
	}
	uri, err := url.Parse(id.URI())
	if err != nil {
		return none, err
	}
	if key, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return none, errors.New("not a P-256 key")
	}
	a.issued++
	now, g := a.clock.Now(), a.live[len(a.live)-1]
	cert, err := g.sign(&x509.Certificate{URIs: []*url.URL{uri}, NotBefore: now.Add(-backdate), NotAfter: now.Add(a.ttl),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, csr.PublicKey)
	if err != nil {
		return none, err
	}
	return trust.IssuedCertificate{LeafPEM: certPEM(cert), ChainPEM: g.pem(), Facts: trust.CertFactsOf(cert)}, nil
}

// Roots implements nodeapi.Issuer. Like the real adapter, it returns cached roots
// while Vault is sealed.
func (a *authority) Roots(context.Context) ([]*x509.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return certsOf(a.live), nil
}

// Retired implements nodeapi.Issuer.
func (a *authority) Retired(context.Context) ([]*x509.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return certsOf(a.retired), nil
}

func certsOf(list []*generation) (out []*x509.Certificate) {
	for _, g := range list {
		out = append(out, g.cert)
	}
	return out
}
