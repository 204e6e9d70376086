package maas

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// The limits of responses. A list is decoded machine by machine, and MAAS describes one in
// 10 to 60 KiB.
const (
	maxOne   = 8 << 20
	maxList  = 64 << 20
	maxError = 4 << 10 // bytes of an error's body
	maxText  = 200     // characters of it in a message
)

// client sends requests to API 2.0.
type client struct {
	keys
	base    *url.URL
	timeout time.Duration
}

func newClient(base *url.URL, token string, s Settings) *client {
	transport := s.Transport
	if transport == nil {
		transport = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4,
			IdleConnTimeout: time.Minute, TLSHandshakeTimeout: s.Timeout}
	}
	c := &client{keys: keys{transport: transport, read: s.ReadToken, keep: s.KeepToken}, base: base, timeout: s.Timeout}
	if s.ReadToken == nil {
		c.use(token)
	}
	return c
}

// request is one request. It changes the provider if it has a form.
type request struct {
	what  string // for messages, for example "deploy machine abc"
	path  string // below the base, with a slash at the end
	query url.Values
	form  url.Values
	// item is set if the path names one machine.
	item  bool
	limit int64
	// secrets are texts of the form, which no message may quote.
	secrets []string
}

func (r request) changes() bool { return r.form != nil }

// call sends the request and decodes the response with into. If MAAS rejects an API key that was
// replaced, call sends the request again with the new key: MAAS checks the key before anything else.
func (c *client) call(ctx context.Context, r request, into func(*json.Decoder) error) error {
	k, err := c.key(ctx)
	if err != nil {
		return err
	}
	err = c.send(ctx, k, r, into)
	if c.read == nil || !hasStatus(err, http.StatusUnauthorized) {
		return err
	}
	fresh, readErr := c.readKey(ctx)
	switch {
	case readErr != nil:
		return readErr
	case fresh.token == k.token:
		return err
	}
	return c.send(ctx, fresh, r, into)
}

// send sends the request once, with an API key.
func (c *client) send(ctx context.Context, k *apiKey, r request, into func(*json.Decoder) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := c.build(ctx, r)
	if err != nil {
		return machine.Wrap(machine.ReasonRejected, err, "cannot %s: the request is invalid", r.what)
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return c.unanswered(r, err, connected.Load())
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // the status decides
		return c.refused(r, resp, string(body))
	}
	limit := r.limit
	if limit == 0 {
		limit = maxOne
	}
	if err := into(json.NewDecoder(io.LimitReader(resp.Body, limit))); err != nil {
		return c.unanswered(r, errors.New("invalid response"), true)
	}
	return nil
}

func (c *client) build(ctx context.Context, r request) (*http.Request, error) {
	target := c.base.JoinPath(r.path)
	target.RawQuery = r.query.Encode()
	if !r.changes() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", "application/json")
		return req, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), strings.NewReader(r.form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req, nil
}

// unanswered is the error of a request without a usable response. The request had no effect if
// it only reads, or if there was no connection to write it to.
func (c *client) unanswered(r request, err error, connected bool) error {
	why := "there is no connection"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		why = "it did not respond in time"
	case errors.Is(err, context.Canceled):
		why = "the request was canceled"
	case connected:
		why = "its response is missing or invalid"
	}
	reason := machine.ReasonUnavailable
	if r.changes() && connected {
		reason = machine.ReasonAmbiguous
	}
	return machine.Wrap(reason, err, "cannot %s: MAAS at %s: %s", r.what, c.base.Host, why)
}

// refused is the error of a response with a status other than 2xx.
//
// MAAS reports errors as plain text, and those of forms as JSON. It answers 409 if a machine's
// state forbids the request or no machine matches, and 503 with Retry-After if a service of its
// own is not available (src/maasserver/exceptions.py and middleware.py of canonical/maas). A
// transaction of a request that fails is rolled back, but 500 and 504 may be the failure of what
// follows its commit, and 502 that of a proxy.
func (c *client) refused(r request, resp *http.Response, body string) error {
	says := c.quote(r, resp, body)
	reason := machine.ReasonRejected
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		reason = machine.ReasonAuth
	case code == http.StatusNotFound && r.item:
		reason = machine.ReasonMissing
	case code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests:
		reason = machine.ReasonUnavailable
	case code >= 500:
		reason = machine.ReasonUnavailable
		if r.changes() {
			reason = machine.ReasonAmbiguous
		}
	}
	return machine.Wrap(reason, &status{resp.StatusCode}, "cannot %s: MAAS at %s responds with status %d%s", r.what, c.base.Host, resp.StatusCode, says)
}

// status is the cause of an error that is a response.
type status struct{ code int }

func (s *status) Error() string { return http.StatusText(s.code) }

// conflict reports whether err is a response with status 409.
func conflict(err error) bool { return hasStatus(err, http.StatusConflict) }

func hasStatus(err error, code int) bool {
	s, ok := errors.AsType[*status](err)
	return ok && s.code == code
}

// quote returns the text of an error's body for a message, empty if it is a page or quotes a
// secret of the request.
func (c *client) quote(r request, resp *http.Response, body string) string {
	kind := resp.Header.Get("Content-Type")
	if !strings.HasPrefix(kind, "text/plain") && !strings.HasPrefix(kind, "application/json") {
		return ""
	}
	for _, secret := range r.secrets {
		if secret != "" && strings.Contains(body, secret[:min(len(secret), 24)]) {
			return ""
		}
	}
	line := c.line(body)
	if line == "" {
		return ""
	}
	return ": " + line
}
