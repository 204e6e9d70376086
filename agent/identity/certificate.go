package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

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

// checkIssuer verifies that a certificate of the bundle of node issuers signed the
// certificate or its chain: a valid pair may come from a node CA that was replaced.
// Validity periods do not count, because a backdated certificate may be older than a
// new CA. A missing bundle is not an error.
func (i *Pair) checkIssuer(bundlePath string) error {
	text, err := os.ReadFile(bundlePath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	issuers, parseErr := trust.ParseCertificates(string(text))
	if err := errors.Join(err, parseErr); err != nil {
		return fmt.Errorf("%s: %w", bundlePath, err)
	}
	chain, err := x509.ParseCertificates(slices.Concat(i.Certificate.Certificate...))
	if err != nil {
		return err
	}
	for n, c := range chain {
		if n > 0 && chain[n-1].CheckSignatureFrom(c) != nil {
			break
		}
		if slices.ContainsFunc(issuers, func(by *x509.Certificate) bool { return c.CheckSignatureFrom(by) == nil }) {
			return nil
		}
	}
	return fmt.Errorf("issuer %q is not in %s", i.Facts.Issuer, bundlePath)
}

// BundleFault returns why the bundle of node issuers does not fit the certificate: it is
// missing or malformed, or has not its issuer. nil if it fits.
func (i *Pair) BundleFault(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	return i.checkIssuer(path)
}

// sameIssuer reports whether the same CA issued both certificates: a CA that was made again
// under the same name has another key.
func (i *Pair) sameIssuer(o *Pair) bool {
	return bytes.Equal(i.Leaf.RawIssuer, o.Leaf.RawIssuer) && bytes.Equal(i.Leaf.AuthorityKeyId, o.Leaf.AuthorityKeyId)
}

// presentTo returns ErrIssuer if the server names the issuers that it accepts and
// the certificate is from none of them.
func (i *Pair) presentTo(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	issuers := tls.CertificateRequestInfo{
		AcceptableCAs: r.AcceptableCAs,
		Version:       tls.VersionTLS12, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
	}
	if issuers.SupportsCertificate(&i.Certificate) != nil {
		return nil, ErrIssuer
	}
	return &i.Certificate, nil
}
