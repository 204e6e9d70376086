package vault

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	// callTimeout limits each call, including its retry.
	callTimeout = 10 * time.Second
	// One quick retry covers a connection that a restarted Vault or its load
	// balancer has dropped. Only a request with once is sent one time.
	maxRetries   = 1
	retryWaitMin = 50 * time.Millisecond
	retryWaitMax = 250 * time.Millisecond
	// maxIdle is the number of idle connections kept if Vault uses HTTP/1.1. The
	// library's default is one more than the number of processors, so that most
	// of eight concurrent callers would open a connection for each call.
	maxIdle = 64
)

// errAbsent means that Vault itself reported that the object does not exist.
var errAbsent = errors.New("does not exist")

// request is one request to Vault's API.
type request struct {
	method string // GET, LIST, PUT or PATCH
	path   string // without /v1/
	data   map[string]any
	once   bool // a second request would create another object
}

func get(path string) request  { return request{method: http.MethodGet, path: path} }
func list(path string) request { return request{method: "LIST", path: path} }

func put(path string, data map[string]any) request {
	return request{method: http.MethodPut, path: path, data: data}
}

// create is a put that creates another object each time, and so is not repeated.
func create(path string, data map[string]any) request {
	return request{method: http.MethodPut, path: path, data: data, once: true}
}

// patch changes the given fields of an object.
func patch(path string, data map[string]any) request {
	return request{method: http.MethodPatch, path: path, data: data}
}

// conn is a connection to one Vault with one token.
type conn struct {
	api     *api.Client
	address string
	timeout time.Duration
}

// dial prepares a connection without a token. It sends no request.
func dial(address string) (*conn, error) {
	c := api.DefaultConfig()
	if c.Error != nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "the VAULT_… environment variables are invalid")
	}
	if address == "" {
		address = c.Address
	}
	u, err := url.Parse(address)
	if err != nil || u.User != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, schema.NewError(schema.KindInvalidRequest, "the Vault address must have the form http(s)://host:port, without a user")
	}
	c.Address, c.AgentAddress = address, ""
	c.Timeout, c.MaxRetries = callTimeout, maxRetries
	c.MinRetryWait, c.MaxRetryWait = retryWaitMin, retryWaitMax
	c.CheckRetry = retry
	if t, ok := c.HttpClient.Transport.(*http.Transport); ok {
		t.MaxIdleConnsPerHost = maxIdle
	}
	client, err := api.NewClient(c)
	if err != nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "the connection settings for Vault at %s are invalid", address)
	}
	client.ClearToken()
	return &conn{api: client, address: address, timeout: callTimeout}, nil
}

// send sends a request and returns the data of the response, nil if it has none.
// It returns Vault's error unchanged, for interpretError, and errAbsent for a 404
// without a message, by which Vault reports that the object does not exist. Any
// other 404 (no handler for the path, a proxy's page) is an error. The library's
// own calls treat every 404 alike.
func (c *conn) send(ctx context.Context, r request) (json.RawMessage, error) {
	resp, err := c.sendRaw(ctx, r)
	if resp != nil {
		defer func() { _ = resp.Body.Close() }()
	}
	if e, ok := errors.AsType[*api.ResponseError](err); ok &&
		e.StatusCode == http.StatusNotFound && !e.RawError && len(e.Errors) == 0 {
		return nil, errAbsent
	}
	if err != nil {
		return nil, err
	}
	var body struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return nil, malformed()
	}
	return body.Data, nil
}

// onceKey marks the context of a request that is not repeated.
type onceKey struct{}

// retry is the library's policy for what may be sent again.
func retry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if ctx.Value(onceKey{}) != nil {
		return false, err
	}
	return api.DefaultRetryPolicy(ctx, resp, err)
}

func (c *conn) sendRaw(ctx context.Context, r request) (*api.Response, error) {
	if r.once {
		ctx = context.WithValue(ctx, onceKey{}, true)
	}
	switch r.method {
	case http.MethodGet:
		return c.api.Logical().ReadRawWithDataWithContext(ctx, r.path, nil)
	case "LIST":
		return c.api.Logical().ReadRawWithDataWithContext(ctx, r.path, url.Values{"list": {"true"}})
	}
	body, err := json.Marshal(r.data)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding a request to Vault")
	}
	if r.method == http.MethodPatch {
		req := c.api.NewRequest(http.MethodPatch, "/v1/"+r.path)
		req.Headers.Set("Content-Type", "application/merge-patch+json")
		req.BodyBytes = body
		return c.api.RawRequestWithContext(ctx, req) //nolint:staticcheck // the library has no other call for a patch with a raw response
	}
	return c.api.Logical().WriteRawWithContext(ctx, r.path, body)
}

// caller sends requests as a session or as a setup does.
type caller interface {
	// call sends a request with a deadline. op names it in errors. The error is a
	// *schema.Error or errAbsent.
	call(ctx context.Context, op string, r request) (json.RawMessage, error)
	// url is Vault's address, for errors.
	url() string
}

func (c *conn) url() string { return c.address }

// fetch sends a request and decodes the data of the response, which must have some.
func fetch[T any](ctx context.Context, c caller, op string, r request) (T, error) {
	var out T
	data, err := c.call(ctx, op, r)
	if err == nil && json.Unmarshal(data, &out) != nil {
		err = malformed()
	}
	return out, err
}

func malformed() error {
	return schema.NewError(schema.KindInternal, "Vault's response has an unexpected form")
}
