// Package resulttest signs task results in tests that call the node API without
// an agent.
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

// Transport signs task results with the certificate's key, unless the request has
// a signature or Cert is nil.
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

// Sign returns the signature of a task result by a certificate's key, in the form
// of wire.HeaderResultSignature.
func Sign(cert *tls.Certificate, taskID string, body []byte) (string, error) {
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return "", schema.NewError(schema.KindInternal, "the certificate has no private key")
	}
	sum := sha256.Sum256(dsse.PAE(trust.ResultPayloadType(taskID), body))
	signature, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	return base64.RawURLEncoding.EncodeToString(signature), err
}
