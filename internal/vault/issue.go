package vault

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net/url"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Issue implements nodeapi.Issuer: a node certificate for the CSR's key and the
// identity. A CSR that asks for anything else is KindInvalidRequest (a
// csr_* reason of trust.CheckCSR) before Vault is asked. What comes back
// is compared with what was asked, field by field; anything else is
// KindInternal. Asking again is safe: it makes another certificate, and one that
// nobody stored opens nothing.
func (c *Client) Issue(ctx context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error) {
	var none trust.IssuedCertificate
	if err := trust.CheckCSR(csr); err != nil {
		return none, err
	}
	if err := c.checkIdentity(id); err != nil {
		return none, err
	}
	leaf, chain, err := c.signCSR(ctx, "issue", nodeMount, nodeRole, csr.Raw, map[string]any{"uri_sans": id.URI()})
	if err != nil {
		return none, err
	}
	want := leafWant{
		spki:     csr.RawSubjectPublicKeyInfo,
		uri:      id.URI(),
		usage:    x509.ExtKeyUsageClientAuth,
		lifetime: nodeCertTTL,
	}
	if err := c.checkIssued(ctx, leaf, want, c.nodeCAs, nodeMount); err != nil {
		return none, err
	}
	return trust.IssuedCertificate{LeafPEM: certPEM(leaf), ChainPEM: certPEM(chain...), Facts: trust.CertFactsOf(leaf)}, nil
}

// checkIdentity refuses an identity that would not read back as itself, or is
// of another environment.
func (c *Client) checkIdentity(id trust.Identity) error {
	u, err := url.Parse(id.URI())
	if err != nil {
		return schema.Errorf(schema.KindInternal, "issuing a certificate: the node's identity makes no URI")
	}
	if back, err := trust.ParseIdentity(u); err != nil || back != id || id.Env != c.env {
		return schema.Errorf(schema.KindInternal, "issuing a certificate: %s is no node identity of environment %s", id.URI(), c.env)
	}
	return nil
}

// signCSR has a CA sign a request's key and returns the leaf and its issuers.
func (c *Client) signCSR(ctx context.Context, op, mount, role string, csrDER []byte, names map[string]any) (leaf *x509.Certificate, chain []*x509.Certificate, err error) {
	data := map[string]any{"csr": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csrDER}))}
	maps.Copy(data, names)
	secret, err := c.call(ctx, op, put(mount+"/sign/"+role, data))
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		Certificate string   `json:"certificate"`
		IssuingCA   string   `json:"issuing_ca"`
		CAChain     []string `json:"ca_chain"`
	}
	if err := decode(secret, &answer); err != nil {
		return nil, nil, err
	}
	leaves, err := parseCerts(answer.Certificate)
	if err != nil || len(leaves) != 1 {
		return nil, nil, schema.Errorf(schema.KindInternal, "Vault's answer holds not exactly one certificate")
	}
	if len(answer.CAChain) == 0 {
		answer.CAChain = []string{answer.IssuingCA}
	}
	chain, err = parseCerts(strings.Join(answer.CAChain, "\n"))
	if err != nil {
		return nil, nil, err
	}
	return leaves[0], chain, nil
}

// parseCerts parses a PEM text that holds certificates and nothing else.
func parseCerts(text string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	rest := []byte(text)
	for len(strings.TrimSpace(string(rest))) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, schema.Errorf(schema.KindInternal, "Vault's answer holds something that is no PEM certificate")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, schema.Errorf(schema.KindInternal, "Vault's answer holds a malformed certificate")
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

func certPEM(certs ...*x509.Certificate) string {
	var b strings.Builder
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.String()
}
