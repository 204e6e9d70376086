package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxAnswerBytes bounds what the agent reads of one answer: an offer with the
// largest envelope fits.
const maxAnswerBytes = 4 * wire.MaxBodyBytes

// client speaks to the node API. Every error is a *schema.Error: the server's
// own, or KindServiceUnavailable when it could not be reached or answered with
// something else than the API's envelope.
type client struct {
	base   string // https://host[:port]/internal/v1/nodes/{id}
	bundle string // path of the CA bundle that it was made with
	// key signs results: that of the certificate that is presented; nil where
	// none is.
	key   crypto.Signer
	http  *http.Client
	clock *serverClock
}

// presenter chooses the certificate of a handshake.
type presenter func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

// newClient builds a client that trusts only the CA bundle. present is nil where
// no certificate is to be shown: at an enrolment and a recovery.
func (d Deps) newClient(c Config, clock *serverClock, present presenter) (*client, error) {
	pemText, err := os.ReadFile(c.CABundlePath)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "reading GPUAAS_CA_BUNDLE_PATH")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pemText) {
		return nil, schema.Errorf(schema.KindInvalidRequest, "GPUAAS_CA_BUNDLE_PATH: %s holds no certificate", c.CABundlePath)
	}
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, Time: clock.now, GetClientCertificate: present}
	var carrier http.RoundTripper = newTransport(conf)
	if d.Transport != nil {
		carrier = d.Transport(conf)
	}
	return &client{
		base:   c.APIURL + "/internal/v1/nodes/" + url.PathEscape(c.NodeID),
		bundle: c.CABundlePath,
		clock:  clock,
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

// newTransport speaks HTTP/1.1 alone. An idle node has one request under way, its
// poll: HTTP/2 would give it nothing but more memory at the server. A peer that
// vanished is found by the system's probes within 45 s.
func newTransport(conf *tls.Config) *http.Transport {
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

func (c *client) close() { c.http.CloseIdleConnections() }

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
func (c *client) do(ctx context.Context, r call, out any) (found bool, err error) {
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
	if told, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		c.clock.heard(told)
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

func (c *client) request(ctx context.Context, r call) (*http.Request, error) {
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
	req.Header.Set("User-Agent", "gpuaas-node-agent/"+Version())
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

// retryError is an error whose answer said when to come back.
type retryError struct {
	error
	after time.Duration
}

// Unwrap returns the answer's error.
func (r retryError) Unwrap() error { return r.error }

// maxRetryAfter bounds what one answer can ask for.
const maxRetryAfter = time.Hour

// later adds the answer's Retry-After, in seconds, to its error.
func later(res *http.Response, err error) error {
	s, parseErr := strconv.Atoi(res.Header.Get("Retry-After"))
	if parseErr != nil || s <= 0 {
		return err
	}
	return retryError{err, min(time.Duration(min(s, int(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter)}
}

// unreachable says in words why there was no answer. The texts of the network
// layers hold addresses and no secret: tokens travel in bodies only.
func (c *client) unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		at := c.clock.now()
		c.clock.doubt()
		return schema.Wrap(schema.KindServiceUnavailable, err,
			"the server's certificate is not valid at %s, the time here: nothing was sent; is this node's clock right?", stamp(at))
	case errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid):
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server is not the one of GPUAAS_CA_BUNDLE_PATH; nothing was sent")
	}
	return schema.Wrap(schema.KindServiceUnavailable, err, "the node API does not answer")
}

// identity asks for a certificate: enroll, certificates/renew or recover.
func (c *client) identity(ctx context.Context, path string, body any) (wire.EnrollResponse, error) {
	var a wire.EnrollResponse
	found, err := c.do(ctx, call{method: http.MethodPost, path: path, body: body, correlationID: schema.NewID()}, &a)
	if err == nil && !found {
		err = schema.Errorf(schema.KindServiceUnavailable, "the answer holds no certificate")
	}
	if err == nil {
		c.clock.heard(a.ServerTime)
	}
	return a, err
}

// waited is what a poll brought.
type waited struct {
	offer *wire.TaskOffer // nil when none came
	// set names the newest verifier set, zero when the answer does not.
	set trust.VerifierSetRef
	// news are tasks to ask about at once.
	news []string
}

// wait polls for a task. It does not wait where the timeout is below a second.
func (c *client) wait(ctx context.Context, timeout time.Duration, poll wire.PollRequest) (w waited, err error) {
	if timeout >= time.Second {
		poll.WaitSeconds = timeout.Truncate(time.Millisecond).Seconds()
	}
	var header http.Header
	o := new(wire.TaskOffer)
	found, err := c.do(ctx, call{method: http.MethodPost, path: "/tasks/wait", body: poll, repeatable: true, timeout: timeout + 20*time.Second, header: &header}, o)
	if err != nil {
		return w, err
	}
	if found {
		w.offer = o
	}
	if name := header.Get(wire.HeaderVerifierSet); name != "" {
		w.set, _ = trust.ParseVerifierSetRef(name) // zero, as when there is none
	}
	if list := header.Get(wire.HeaderCanceledTasks); list != "" {
		w.news = strings.Split(list, ",")
	}
	return w, nil
}

// sets returns the verifier sets above a version.
func (c *client) sets(ctx context.Context, after int64) (trust.VerifierSets, error) {
	var s trust.VerifierSets
	_, err := c.do(ctx, call{
		method: http.MethodGet, path: "/verifier-sets", query: url.Values{"after": {strconv.FormatInt(after, 10)}},
	}, &s)
	return s, err
}

// trust returns the CA bundles that stand now, and the certificates of the
// server that said so.
func (c *client) trust(ctx context.Context) (t trust.NodeTrust, chain []*x509.Certificate, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/trust", chain: &chain}, &t)
	return t, chain, err
}

func (c *client) progress(ctx context.Context, taskID string, p task.Progress, correlationID string) (wire.ProgressResponse, error) {
	var a wire.ProgressResponse
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/progress",
		body: p, correlationID: correlationID,
	}, &a)
	return a, err
}

func (c *client) result(ctx context.Context, taskID string, r task.Result, correlationID string) error {
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/result",
		body: r, correlationID: correlationID, signAs: trust.ResultPayloadType(taskID),
	}, nil)
	return err
}

func (c *client) heartbeat(ctx context.Context, h wire.HeartbeatRequest) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/heartbeat", body: h}, nil)
	return err
}

// isRemoved reports the one answer that ends the agent.
func isRemoved(err error) bool {
	return errors.Is(err, &schema.Error{Kind: schema.KindInvalidNodeIdentity, Reason: schema.ReasonNodeRemoved})
}
