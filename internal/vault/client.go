package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"github.com/gpuaas/gpuaas/schema"
)

// Setup makes in Vault all that the worker and the API need, and the files they
// log in with. It is idempotent and may run twice at once: what is there is kept,
// keys above all.
func Setup(ctx context.Context, a AdminConfig, c SetupConfig) error {
	return schema.Errorf(schema.KindInternal, "vault setup is not built yet")
}

// Client is a logged-in Vault client. It is safe for concurrent use.
type Client struct{}

// Login logs in and pins the task key's version. The client renews its token by
// itself and logs in again when Vault no longer knows it. Close it.
func Login(ctx context.Context, c Config) (*Client, error) {
	return nil, schema.Errorf(schema.KindInternal, "vault login is not built yet")
}

// Close ends the client's goroutines, waits for them and gives the token back.
func (c *Client) Close() {}

// Sign implements activities.Signer.
func (c *Client) Sign(ctx context.Context, payload []byte) (envelope []byte, err error) {
	return nil, schema.Errorf(schema.KindInternal, "not built yet")
}

// PinTaskKey pins a version of the task key, 0 the newest.
func (c *Client) PinTaskKey(ctx context.Context, version int) error {
	return schema.Errorf(schema.KindInternal, "not built yet")
}

// Verifiers returns the key that task signatures verify with.
func (c *Client) Verifiers(ctx context.Context) (schema.VerifierSet, error) {
	return nil, schema.Errorf(schema.KindInternal, "not built yet")
}

// Issue implements nodeapi.Issuer.
func (c *Client) Issue(ctx context.Context, csr *x509.CertificateRequest, id schema.Identity) (schema.IssuedCertificate, error) {
	return schema.IssuedCertificate{}, schema.Errorf(schema.KindInternal, "not built yet")
}

// Roots returns the live generations of the node CA.
func (c *Client) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	return nil, schema.Errorf(schema.KindInternal, "not built yet")
}

// NodeCA returns Roots as PEM.
func (c *Client) NodeCA(ctx context.Context) (string, error) {
	return "", schema.Errorf(schema.KindInternal, "not built yet")
}

// ServerCA returns, as PEM, what verifies the API's server certificate.
func (c *Client) ServerCA(ctx context.Context) (string, error) {
	return "", schema.Errorf(schema.KindInternal, "not built yet")
}

// ServerCertificate issues the API's server certificate and keeps it fresh
// until Close.
func (c *Client) ServerCertificate(ctx context.Context) (*ServerCertificate, error) {
	return nil, schema.Errorf(schema.KindInternal, "not built yet")
}

// ServerCertificate is the API's current server certificate.
type ServerCertificate struct{}

// GetCertificate is for tls.Config.GetCertificate.
func (s *ServerCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return nil, schema.Errorf(schema.KindInternal, "not built yet")
}

// Leaf returns the certificate in use.
func (s *ServerCertificate) Leaf() *x509.Certificate { return nil }
