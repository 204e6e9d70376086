package vault

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Issue implements nodeapi.Issuer. It issues a node certificate for the CSR's key
// and the identity. A CSR that requests anything else is rejected without a call
// to Vault, with the error of trust.CheckCSR. Issue compares the certificate with
// the request field by field; a difference is KindInternal. Repeating the call is
// safe: it issues another certificate, and the node API rejects a
// certificate that was not stored.
func (c *Client) Issue(ctx context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error) {
	var none trust.IssuedCertificate
	if err := trust.CheckCSR(csr); err != nil {
		return none, err
	}
	if id.Env != c.conf.Env || !schema.IsID(id.NodeID) || id.Incarnation < 1 {
		return none, schema.NewError(schema.KindInternal, "issuing a certificate: %s is not a node identity of environment %s", id.URI(), c.conf.Env)
	}
	leaf, chain, err := c.signCSR(ctx, "issue", nodeMount, nodeRole, csr.Raw, map[string]any{"uri_sans": id.URI()})
	if err != nil {
		return none, err
	}
	want := leafSpec{
		spki:     csr.RawSubjectPublicKeyInfo,
		names:    []string{id.URI()},
		usage:    x509.ExtKeyUsageClientAuth,
		lifetime: nodeCertTTL,
	}
	if err := c.checkIssued(ctx, leaf, want, c.nodeCAs); err != nil {
		return none, err
	}
	return trust.IssuedCertificate{LeafPEM: trust.EncodeCertificates(leaf), ChainPEM: trust.EncodeCertificates(chain...), Facts: trust.CertFactsOf(leaf)}, nil
}

// signCSR has a CA sign a request's key. It returns the leaf and its issuers.
func (c *Client) signCSR(ctx context.Context, op, mount, role string, csrDER []byte, names map[string]any) (leaf *x509.Certificate, chain []*x509.Certificate, err error) {
	data := map[string]any{"csr": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csrDER}))}
	maps.Copy(data, names)
	response, err := fetch[struct {
		Certificate string   `json:"certificate"`
		IssuingCA   string   `json:"issuing_ca"`
		CAChain     []string `json:"ca_chain"`
	}](ctx, c, op, put(mount+"/sign/"+role, data))
	if err != nil {
		return nil, nil, err
	}
	leaves, err := parseCerts(response.Certificate)
	if err != nil || len(leaves) != 1 {
		return nil, nil, schema.NewError(schema.KindInternal, "Vault's response does not contain exactly one certificate")
	}
	if len(response.CAChain) == 0 {
		response.CAChain = []string{response.IssuingCA}
	}
	chain, err = parseCerts(strings.Join(response.CAChain, "\n"))
	return leaves[0], chain, err
}

// parseCerts parses the certificates of a response.
func parseCerts(pemText string) ([]*x509.Certificate, error) {
	certs, err := trust.ParseCertificates(pemText)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "reading the certificates in Vault's response")
	}
	return certs, nil
}
