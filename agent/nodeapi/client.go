package nodeapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxAnswerBytes bounds the body of a response. An offer with the largest envelope fits.
const maxAnswerBytes = 4 * wire.MaxBodyBytes

// Client calls the node API. Every error is a *schema.Error: the server's
// own, or KindServiceUnavailable when it could not be reached or answered with
// something else than the API's envelope.
type Client struct {
	conf Config
	base string // https://host[:port]/internal/v1/nodes/{id}
	// key signs results: that of the certificate that is presented; nil where
	// none is.
	key  crypto.Signer
	http *http.Client
}

// Config is what a client depends on.
type Config struct {
	// URL is the node API's https address; no path.
	URL          string
	NodeID       string
	CABundlePath string
	AgentVersion string
	// Transport replaces the HTTP transport when not nil.
	Transport func(*tls.Config) http.RoundTripper
	Clock     *Clock
}

// New builds a client that trusts only the CA bundle. present chooses the
// certificate of a handshake; it is nil where none is presented: for an enrollment
// and a recovery. key signs results and belongs to the certificate.
func New(c Config, present func(*tls.CertificateRequestInfo) (*tls.Certificate, error), key crypto.Signer) (*Client, error) {
	pemText, err := os.ReadFile(c.CABundlePath)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "reading GPUAAS_CA_BUNDLE_PATH")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pemText) {
		return nil, schema.NewError(schema.KindInvalidRequest, "GPUAAS_CA_BUNDLE_PATH: %s holds no certificate", c.CABundlePath)
	}
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, Time: c.Clock.Now, GetClientCertificate: present}
	var carrier http.RoundTripper = NewTransport(conf)
	if c.Transport != nil {
		carrier = c.Transport(conf)
	}
	return &Client{
		conf: c,
		base: c.URL + "/internal/v1/nodes/" + url.PathEscape(c.NodeID),
		key:  key,
		http: &http.Client{
			Transport: carrier,
			// A redirect could carry a token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes idle connections; requests under way end as usual.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request to the node API.
type call struct {
	method, path  string
	query         url.Values
	body          any
	correlationID string
	timeout       time.Duration // 30 s when 0
	resultOf      string        // the task whose signed result the body is
	repeatable    bool          // resend a POST when an idle connection turns out to be closed
}

// answer is a response of status 200 or 204 without its body.
type answer struct {
	status int
	header http.Header
	chain  []*x509.Certificate // of the server
}

// do sends the call and decodes the body of a 200 into out.
func (c *Client) do(ctx context.Context, r call, out any) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, 30*time.Second))
	defer cancel()
	req, err := c.request(ctx, r)
	if err != nil {
		return a, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return a, c.unreachable(err)
	}
	defer res.Body.Close()
	if sent, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		c.conf.Clock.Observe(sent)
	}
	a = answer{status: res.StatusCode, header: res.Header}
	if res.TLS != nil {
		a.chain = res.TLS.PeerCertificates
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return a, c.unreachable(err)
	case len(body) > maxAnswerBytes:
		return a, schema.NewError(schema.KindServiceUnavailable, "the node API's answer is larger than %d bytes", maxAnswerBytes)
	case res.StatusCode == http.StatusNoContent:
		return a, nil
	case res.StatusCode != http.StatusOK:
		return a, refusal(res, body)
	case out == nil:
		return a, nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return a, schema.Wrap(schema.KindServiceUnavailable, err, "the node API's answer does not match the contract")
	}
	return a, nil
}

func (c *Client) request(ctx context.Context, r call) (*http.Request, error) {
	var body io.Reader
	signature := ""
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encoding a request: %w", err)
		}
		if r.resultOf != "" {
			if signature, err = c.sign(r.resultOf, data); err != nil {
				return nil, err
			}
		}
		body = bytes.NewReader(data)
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "gpuaas-node-agent/"+c.conf.AgentVersion)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.correlationID != "" {
		req.Header.Set(wire.HeaderCorrelationID, r.correlationID)
	}
	if r.repeatable {
		req.Header["Idempotency-Key"] = nil // net/http: the request is idempotent; the header is not sent
	}
	if signature != "" {
		req.Header.Set(wire.HeaderResultSignature, signature)
	}
	return req, nil
}

// errNoKey means that the client presents no certificate.
var errNoKey = errors.New("no key to sign with")

// sign returns the signature of a task's result by the key of the certificate that
// this client presents, in the form of wire.HeaderResultSignature.
func (c *Client) sign(taskID string, body []byte) (string, error) {
	if c.key == nil {
		return "", errNoKey
	}
	signature, err := c.key.Sign(rand.Reader, trust.ResultDigest(taskID, body), crypto.SHA256)
	if err != nil {
		return "", schema.Wrap(schema.KindInternal, err, "signing a result")
	}
	return base64.RawURLEncoding.EncodeToString(signature), nil
}

// BundlePath is the path of the CA bundle that the client was made with.
func (c *Client) BundlePath() string { return c.conf.CABundlePath }
