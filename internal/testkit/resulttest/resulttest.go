// Package resulttest signs the results of tasks in tests that speak to the node
// API without an agent.
package resulttest

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"path"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Transport signs what is posted as a task's result with the certificate's key,
// unless it has a signature or there is no certificate.
type Transport struct {
	*http.Transport
	Cert *tls.Certificate
}

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if path.Base(r.URL.Path) != "result" || t.Cert == nil || r.GetBody == nil || r.Header[wire.HeaderResultSignature] != nil {
		return t.Transport.RoundTrip(r)
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	signature, err := Sign(t.Cert, path.Base(path.Dir(r.URL.Path)), raw)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set(wire.HeaderResultSignature, signature)
	return t.Transport.RoundTrip(r)
}

// Sign returns the signature of a task's result by a certificate's key, as
// wire.HeaderResultSignature carries it.
func Sign(cert *tls.Certificate, taskID string, body []byte) (string, error) {
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return "", schema.NewError(schema.KindInternal, "the certificate has no key to sign with")
	}
	sum := sha256.Sum256(dsse.PAE(trust.ResultPayloadType(taskID), body))
	signature, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	return base64.RawURLEncoding.EncodeToString(signature), err
}
