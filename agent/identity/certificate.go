package identity

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

// Pair is a certificate with its key, as loaded from disk.
type Pair struct {
	Certificate tls.Certificate
	Leaf        *x509.Certificate
	ID          trust.Identity
	Facts       trust.CertFacts
}

// parseIdentity verifies that certificate and key match and that the certificate
// names a node.
func parseIdentity(certPEM, keyPEM []byte) (*Pair, error) {
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
	return &Pair{Certificate: pair, Leaf: leaf, ID: id, Facts: trust.CertFactsOf(leaf)}, nil
}

// matches rejects an identity of another node or environment.
func (i *Pair) matches(c Config) error {
	switch {
	case i.ID.NodeID != c.NodeID:
		return fmt.Errorf("the certificate names node %s, not %s", i.ID.NodeID, c.NodeID)
	case i.ID.Env != c.Env:
		return fmt.Errorf("the certificate names environment %q, not %q", i.ID.Env, c.Env)
	}
	return nil
}

// checkIssuer verifies the certificate against the bundle of node issuers: a valid
// pair may come from a node CA that was replaced. Each issuer is checked at a time
// when both it and the certificate are valid, because a backdated certificate may be
// older than a new CA. A missing bundle is no error.
func (i *Pair) checkIssuer(bundlePath string) error {
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
	return fmt.Errorf("issuer %q is not in %s: %w", i.Facts.Issuer, bundlePath, err)
}

// issuedUnder verifies the chain to one root.
func (i *Pair) issuedUnder(root *x509.Certificate) error {
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	pool.AddCert(root)
	begin := i.Leaf.NotBefore
	if root.NotBefore.After(begin) {
		begin = root.NotBefore
	}
	for _, der := range i.Certificate.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := i.Leaf.Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: between, CurrentTime: begin.Add(time.Second),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// acceptedBy reports whether a server that names these issuers (raw names, none
// for any) can accept the certificate.
func (i *Pair) acceptedBy(issuers [][]byte) bool {
	if len(issuers) == 0 {
		return true
	}
	for n, der := range i.Certificate.Certificate {
		c := i.Leaf
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

// parseCerts parses the certificates of a PEM text and skips other blocks.
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
