package nodeapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxAnswerBytes bounds what the agent reads of one answer: an offer with the
// largest envelope fits.
const maxAnswerBytes = 4 * wire.MaxBodyBytes

// Client speaks to the node API. Every error is a *schema.Error: the server's
// own, or KindServiceUnavailable when it could not be reached or answered with
// something else than the API's envelope.
type Client struct {
	base   string // https://host[:port]/internal/v1/nodes/{id}
	bundle string // path of the CA bundle that it was made with
	// key signs results: that of the certificate that is presented; nil where
	// none is.
	key     crypto.Signer
	version string // of the agent
	http    *http.Client
	clock   *Clock
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
		return nil, schema.Errorf(schema.KindInvalidRequest, "GPUAAS_CA_BUNDLE_PATH: %s holds no certificate", c.CABundlePath)
	}
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, Time: c.Clock.Now, GetClientCertificate: present}
	var carrier http.RoundTripper = NewTransport(conf)
	if c.Transport != nil {
		carrier = c.Transport(conf)
	}
	return &Client{
		base:    c.URL + "/internal/v1/nodes/" + url.PathEscape(c.NodeID),
		bundle:  c.CABundlePath,
		version: c.AgentVersion,
		key:     key,
		clock:   c.Clock,
		http: &http.Client{
			Transport: carrier,
			// A redirect could carry a token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// idleFor is how long a connection that nothing uses stays open. The poll takes
// the one that was used last, so one that was opened beside it for other calls
// goes after this time; a running task's progress, each 20 s, still finds it.
const idleFor = 25 * time.Second

// NewTransport speaks HTTP/1.1 alone. An idle node has one request under way, its
// poll: HTTP/2 would give it nothing but more memory at the server. A peer that
// vanished is found by the system's probes within 45 s.
func NewTransport(conf *tls.Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	dial := net.Dialer{
		Timeout:         15 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3},
	}
	return &http.Transport{
		TLSClientConfig:     conf,
		Protocols:           &protocols,
		DialContext:         dial.DialContext,
		TLSHandshakeTimeout: 30 * time.Second, // as long as the API gives it, when a fleet comes back at once
		IdleConnTimeout:     idleFor,
		MaxIdleConns:        2,
		MaxIdleConnsPerHost: 2,
	}
}

// Close closes idle connections; requests under way end as usual.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request to the node API.
type call struct {
	method, path  string
	query         url.Values
	body          any
	correlationID string
	timeout       time.Duration        // 30 s when 0
	header        *http.Header         // gets the answer's when not nil
	signAs        string               // DSSE payload type; "" for a body that is not signed
	repeatable    bool                 // resend a POST when an idle connection turns out to be closed
	chain         *[]*x509.Certificate // gets the server's when not nil
}

// do sends the call and decodes a 200 into out; found is false for a 204.
func (c *Client) do(ctx context.Context, r call, out any) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, 30*time.Second))
	defer cancel()
	req, err := c.request(ctx, r)
	if err != nil {
		return false, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return false, c.unreachable(err)
	}
	defer res.Body.Close()
	if sent, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		c.clock.Observe(sent)
	}
	if r.header != nil {
		*r.header = res.Header
	}
	if r.chain != nil && res.TLS != nil {
		*r.chain = res.TLS.PeerCertificates
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return false, c.unreachable(err)
	case len(body) > maxAnswerBytes:
		return false, schema.Errorf(schema.KindServiceUnavailable, "the node API's answer is larger than %d bytes", maxAnswerBytes)
	case res.StatusCode == http.StatusNoContent:
		return false, nil
	case res.StatusCode != http.StatusOK:
		return false, refusal(res, body)
	case out == nil:
		return true, nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return false, schema.Wrap(schema.KindServiceUnavailable, err, "the node API's answer is not what the contract says")
	}
	return true, nil
}

func (c *Client) request(ctx context.Context, r call) (*http.Request, error) {
	var body io.Reader
	signature := ""
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encoding a request: %w", err)
		}
		if r.signAs != "" {
			if signature, err = c.sign(r.signAs, data); err != nil {
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
	req.Header.Set("User-Agent", "gpuaas-node-agent/"+c.version)
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

// refusal turns an answer that is no success into an error. Only the API's own
// envelope can carry a meaning: a 404 of some proxy on the way is no "not
// found".
func refusal(res *http.Response, body []byte) error {
	var e schema.ErrorBody
	if err := json.Unmarshal(body, &e); err == nil && e.Error.Code != "" {
		return later(res, e.AsError())
	}
	hint := ""
	if res.StatusCode == http.StatusNotFound {
		hint = "; GPUAAS_API_URL may not route to the node API"
	}
	return later(res, schema.Errorf(schema.KindServiceUnavailable, "the answer %d is not the node API's%s", res.StatusCode, hint))
}

// maxRetryAfter bounds what one answer can ask for.
const maxRetryAfter = time.Hour

// later adds the answer's Retry-After, in seconds, to its error.
func later(res *http.Response, err error) error {
	s, parseErr := strconv.Atoi(res.Header.Get("Retry-After"))
	if parseErr != nil || s <= 0 {
		return err
	}
	return apierror.WithRetryAfter(err, min(time.Duration(min(s, int(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter))
}

// unreachable says in words why there was no answer. The texts of the network
// layers hold addresses and no secret: tokens travel in bodies only.
func (c *Client) unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		at := c.clock.Now()
		c.clock.doubt()
		return schema.Wrap(schema.KindServiceUnavailable, err,
			"the server's certificate is not valid at %s, the time here: nothing was sent; is this node's clock right?", text.FormatTime(at))
	case errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid):
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server is not the one of GPUAAS_CA_BUNDLE_PATH; nothing was sent")
	}
	return schema.Wrap(schema.KindServiceUnavailable, err, "the node API does not answer")
}

// Certificate requests a certificate: enroll, certificates/renew or recover.
func (c *Client) Certificate(ctx context.Context, path string, body any) (wire.EnrollResponse, error) {
	var a wire.EnrollResponse
	found, err := c.do(ctx, call{method: http.MethodPost, path: path, body: body, correlationID: schema.NewID()}, &a)
	if err == nil && !found {
		err = schema.Errorf(schema.KindServiceUnavailable, "the answer holds no certificate")
	}
	if err == nil {
		c.clock.Observe(a.ServerTime)
	}
	return a, err
}

// PollResponse is the answer to a poll.
type PollResponse struct {
	// Offer is nil when there is no task.
	Offer *wire.TaskOffer
	// VerifierSet names the newest verifier set, zero when the answer does not.
	VerifierSet trust.VerifierSetRef
	// CanceledTasks are tasks whose progress must be reported at once.
	CanceledTasks []string
}

// Poll asks for a task. It does not wait where the timeout is below a second.
func (c *Client) Poll(ctx context.Context, timeout time.Duration, poll wire.PollRequest) (p PollResponse, err error) {
	if timeout >= time.Second {
		poll.WaitSeconds = timeout.Truncate(time.Millisecond).Seconds()
	}
	var header http.Header
	o := new(wire.TaskOffer)
	found, err := c.do(ctx, call{method: http.MethodPost, path: "/tasks/wait", body: poll, repeatable: true, timeout: timeout + 20*time.Second, header: &header}, o)
	if err != nil {
		return p, err
	}
	if found {
		p.Offer = o
	}
	if name := header.Get(wire.HeaderVerifierSet); name != "" {
		p.VerifierSet, _ = trust.ParseVerifierSetRef(name) // zero, as when there is none
	}
	if list := header.Get(wire.HeaderCanceledTasks); list != "" {
		p.CanceledTasks = strings.Split(list, ",")
	}
	return p, nil
}

// VerifierSets returns the verifier sets above a version, oldest first.
func (c *Client) VerifierSets(ctx context.Context, after int64) (trust.VerifierSets, error) {
	var s trust.VerifierSets
	_, err := c.do(ctx, call{
		method: http.MethodGet, path: "/verifier-sets", query: url.Values{"after": {strconv.FormatInt(after, 10)}},
	}, &s)
	return s, err
}

// Trust returns the current CA bundles, and the certificates of the server that
// sent them.
func (c *Client) Trust(ctx context.Context) (t trust.NodeTrust, chain []*x509.Certificate, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/trust", chain: &chain}, &t)
	return t, chain, err
}

// Progress extends a task's lease.
func (c *Client) Progress(ctx context.Context, taskID string, p task.Progress, correlationID string) (wire.ProgressResponse, error) {
	var a wire.ProgressResponse
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/progress",
		body: p, correlationID: correlationID,
	}, &a)
	return a, err
}

// Result reports a task's result, signed by the certificate's key.
func (c *Client) Result(ctx context.Context, taskID string, r task.Result, correlationID string) error {
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/result",
		body: r, correlationID: correlationID, signAs: trust.ResultPayloadType(taskID),
	}, nil)
	return err
}

// Heartbeat reports the node's state.
func (c *Client) Heartbeat(ctx context.Context, h wire.HeartbeatRequest) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/heartbeat", body: h}, nil)
	return err
}

// errNoKey means that the client presents no certificate.
var errNoKey = errors.New("no key to sign with")

// sign returns the signature of a document by the key of the certificate that
// this client presents, in the form of wire.HeaderResultSignature.
func (c *Client) sign(payloadType string, body []byte) (string, error) {
	if c.key == nil {
		return "", errNoKey
	}
	sum := sha256.Sum256(dsse.PAE(payloadType, body))
	signature, err := c.key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return "", schema.Wrap(schema.KindInternal, err, "signing a document")
	}
	return base64.RawURLEncoding.EncodeToString(signature), nil
}

// VerifyChain verifies the server's chain under other roots than those it was
// accepted with.
func (c *Client) VerifyChain(roots, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("the connection names no certificate")
	}
	base, err := url.Parse(c.base)
	if err != nil {
		return err
	}
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: base.Hostname(), CurrentTime: c.clock.Now()}
	for _, r := range roots {
		o.Roots.AddCert(r)
	}
	for _, between := range chain[1:] {
		o.Intermediates.AddCert(between)
	}
	_, err = chain[0].Verify(o)
	return err
}

// BundlePath is the path of the CA bundle that the client was made with.
func (c *Client) BundlePath() string { return c.bundle }
