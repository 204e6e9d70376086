package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// identity is a certificate with its key, as loaded from disk.
type identity struct {
	cert  tls.Certificate
	leaf  *x509.Certificate
	id    trust.Identity
	facts trust.CertFacts
}

// errNoIdentity means that there is no usable pair on disk.
var errNoIdentity = errors.New("no certificate and key")

// parseIdentity checks that the pair belongs together and names a node.
func parseIdentity(certPEM, keyPEM []byte) (*identity, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	leaf := pair.Leaf
	if len(leaf.URIs) != 1 {
		return nil, fmt.Errorf("the certificate holds %d URI names, want 1", len(leaf.URIs))
	}
	id, err := trust.ParseIdentity(leaf.URIs[0])
	if err != nil {
		return nil, err
	}
	return &identity{cert: pair, leaf: leaf, id: id, facts: trust.CertFactsOf(leaf)}, nil
}

// matches refuses an identity of another node or environment.
func (i *identity) matches(c Config) error {
	switch {
	case i.id.NodeID != c.NodeID:
		return fmt.Errorf("the certificate names node %s, not %s", i.id.NodeID, c.NodeID)
	case i.id.Env != c.Env:
		return fmt.Errorf("the certificate names environment %q, not %q", i.id.Env, c.Env)
	}
	return nil
}

// checkIssuer compares the certificate with the bundle of node issuers: a pair
// may be whole and in its time and yet be of a node CA that was replaced. Each
// issuer is tried at a time when it and the certificate are both valid: a
// backdated certificate may be older than a fresh CA. A bundle that is not
// there says nothing.
func (i *identity) checkIssuer(bundlePath string) error {
	text, err := os.ReadFile(bundlePath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	roots := parseCerts(text)
	if err != nil || len(roots) == 0 {
		return fmt.Errorf("%s holds no certificate", bundlePath)
	}
	for _, root := range roots {
		if err = i.issuedUnder(root); err == nil {
			return nil
		}
	}
	return fmt.Errorf("issuer %q is not in %s: %w", i.facts.Issuer, bundlePath, err)
}

// issuedUnder verifies the chain to one root.
func (i *identity) issuedUnder(root *x509.Certificate) error {
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	pool.AddCert(root)
	begin := i.leaf.NotBefore
	if root.NotBefore.After(begin) {
		begin = root.NotBefore
	}
	for _, der := range i.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := i.leaf.Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: between, CurrentTime: begin.Add(time.Second),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// acceptedBy reports whether a server that names these issuers (raw names, none
// for any) can accept the certificate.
func (i *identity) acceptedBy(issuers [][]byte) bool {
	if len(issuers) == 0 {
		return true
	}
	for n, der := range i.cert.Certificate {
		c := i.leaf
		if n > 0 {
			var err error
			if c, err = x509.ParseCertificate(der); err != nil {
				continue
			}
		}
		if slices.ContainsFunc(issuers, func(name []byte) bool { return bytes.Equal(name, c.RawIssuer) }) {
			return true
		}
	}
	return false
}

// parseCerts reads the certificates of a PEM text and skips what is none.
func parseCerts(text []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return out
		}
		if c, err := x509.ParseCertificate(b.Bytes); err == nil {
			out = append(out, c)
		}
	}
}
