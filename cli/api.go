package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultAPIURL = "http://127.0.0.1:8081"
	// readLimit bounds a read of the admin API, changeLimit a request that starts or
	// resolves something: the API waits until the workflow has accepted or refused it.
	readLimit   = 10 * time.Second
	changeLimit = 30 * time.Second
	// healthPath is the readiness check of the admin API.
	healthPath = "/api/v1/healthz"
	// maxResponse bounds the size of one response.
	maxResponse = 16 << 20
)

// api returns the client of the admin API. Wrap its calls in decode. Every error of
// its methods is one of the command line, or a *schema.Error: the one of the response,
// or KindServiceUnavailable with the URL when there is no response.
func (e *env) api() *adminclient.Client {
	if e.admin == nil {
		d := e.newDoer()
		base := d.base
		if d.err != nil { // a URL that cannot be parsed would hide the error
			base = defaultAPIURL
		}
		e.admin = &adminclient.Client{Server: base + "/", Client: d}
	}
	return e.admin
}

func (e *env) newDoer() doer {
	server, err := e.server()
	d := doer{base: cmp.Or(strings.TrimRight(server.APIURL, "/"), defaultAPIURL), token: server.Token,
		tokenFrom: e.tokenVariable(), correlationID: e.correlationID, transport: e.transport, err: err}
	if err == nil {
		d.err = checkURL(server.APIURL)
	}
	if d.err == nil {
		d.err = checkPlain("gpuaas", server.APIURL, e.flags.insecureHTTP)
	}
	if d.err == nil && server.CAFile != "" {
		d.transport, d.err = trusting(server.CAFile)
	}
	return d
}

// checkPlain rejects an address to which the token would be sent unencrypted, unless --insecure-http
// accepts it. command is the one whose help applies.
func checkPlain(command, address string, accepted bool) error {
	if !isPlain(address) || accepted {
		return nil
	}
	return usagef(command, "the admin API's URL %s is not encrypted, and anyone on the network could read the token: "+
		"use https, or accept it with --insecure-http (or GPUAAS_INSECURE_HTTP=true)", address)
}

// checkURL validates the URL of the admin API.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil:
		return usagef("gpuaas", "the admin API's URL contains a user or password: use gpuaas login or GPUAAS_API_TOKEN for the token")
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return usagef("gpuaas", "the admin API's URL %q is not valid: set https://HOST:PORT (--api-url or GPUAAS_API_URL)", text)
	}
	return nil
}

// trusting returns a transport that trusts the CA certificates of a file only.
func trusting(path string) (http.RoundTripper, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("gpuaas config set-context", "reading the CA certificates: %s", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, usagef("gpuaas config set-context", "%s contains no CA certificate", path)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}

// doer sends the requests of the generated client.
type doer struct {
	base, token, correlationID string
	// tokenFrom is the variable that hides a stored token, "" if there is none.
	tokenFrom string
	transport http.RoundTripper
	// err is why no request can be sent: the configuration is invalid.
	err error
}

// Do sends a request with the token and a time limit, and returns a response
// other than a success as the error in it.
func (d doer) Do(r *http.Request) (*http.Response, error) {
	if d.err != nil {
		return nil, d.err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set(wire.HeaderCorrelationID, d.correlationID)
	propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
	if d.token != "" {
		r.Header.Set("Authorization", "Bearer "+d.token)
	}
	// A redirect could lead to an unencrypted address, and turns some changes into reads.
	caller := http.Client{Transport: d.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if _, limited := r.Context().Deadline(); !limited {
		caller.Timeout = changeLimit
		if r.Method == http.MethodGet {
			caller.Timeout = readLimit
		}
	}
	res, err := caller.Do(r)
	if err != nil {
		e := schema.NewError(schema.KindServiceUnavailable, "the admin API at %s does not respond", d.base).
			WithReason("api_unreachable").WithNext(unreachableNext(d.base))
		e.Err = errors.Unwrap(err) // without the URL, which the message has
		return nil, e
	}
	if res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}
	defer res.Body.Close()
	return nil, d.refusal(res)
}

// unreachableNext is the next step when the admin API does not respond.
func unreachableNext(base string) string {
	next := "check --api-url, GPUAAS_API_URL or the context; while the API is down, lifecycle and op commands work with --direct"
	if u, err := url.Parse(base); err == nil && isLoopback(u.Hostname()) {
		next += "; on the development stack: gpuaas dev status"
	}
	return next
}

// isPlain reports whether requests to a URL leave this machine unencrypted.
func isPlain(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "http" && !isLoopback(u.Hostname())
}

// isLoopback reports whether a host of a URL is this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// refusal returns the error that a response contains, or one with its status.
func (d doer) refusal(res *http.Response) error {
	var body schema.ErrorBody
	failure := schema.NewError(schema.KindInternal, "the admin API at %s answered %s", d.base, res.Status).WithNext(wrongAddressNext)
	if res.StatusCode > http.StatusInternalServerError { // a proxy without its server
		failure.Kind, failure.Next = schema.KindServiceUnavailable, unreachableNext(d.base)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxResponse)).Decode(&body); err == nil && body.Error.Code != "" {
		failure = body.AsError()
		failure.Message, failure.Next = inFlags().Replace(failure.Message), inFlags().Replace(failure.Next)
	}
	if failure.Kind == schema.KindUnauthenticated {
		failure.Next = d.tokenNext()
	}
	return failure
}

// wrongAddressNext is the next step after a response that is not one of the admin API.
const wrongAddressNext = "check that --api-url, GPUAAS_API_URL or the context has the address of the admin API"

// tokenNext is the next step when the token is not accepted.
func (d doer) tokenNext() string {
	next := "run gpuaas login, or set GPUAAS_API_TOKEN or GPUAAS_API_TOKEN_FILE"
	if d.tokenFrom != "" {
		next = "correct " + d.tokenFrom + ", or unset it and run gpuaas login"
	}
	return next + "; on the development stack: eval \"$(gpuaas dev env)\""
}

// decode reads the response of a call of the generated client.
func decode[T any](res *http.Response, err error) (T, error) { return client.Decode[T](res, err) }

// pages collects the rows of a list up to limit, or all when limit is 0. get
// returns a page and the token of the next one.
func pages[T any](limit uint, get func(size *int, token *string) ([]T, string, error)) ([]T, error) {
	out := []T{}
	rows := client.Pages(nil, func(token *string) ([]T, string, error) {
		size := wire.MaxPage
		if limit > 0 {
			size = min(size, int(limit)-len(out))
		}
		return get(&size, token)
	})
	for row, err := range rows {
		if err != nil {
			return out, err
		}
		if out = append(out, row); limit > 0 && len(out) >= int(limit) {
			break
		}
	}
	return out, nil
}

// nodePage is wire.NodeList with rows of type N.
type nodePage[N any] struct {
	Nodes         []N    `json:"nodes"`
	NextPageToken string `json:"next_page_token,omitempty"`
}

// listNodes returns the nodes of a query up to limit, or all when limit is 0.
func listNodes[N any](ctx context.Context, api *adminclient.Client, q adminclient.ListNodesParams, limit uint) ([]N, error) {
	return pages(limit, func(size *int, token *string) ([]N, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[nodePage[N]](api.ListNodes(ctx, &q))
		return list.Nodes, list.NextPageToken, err
	})
}

// listOperations returns operations, newest first.
func listOperations(ctx context.Context, api *adminclient.Client, q adminclient.ListOperationsParams, limit uint) ([]wire.OperationSummary, error) {
	return pages(limit, func(size *int, token *string) ([]wire.OperationSummary, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[wire.OperationList](api.ListOperations(ctx, &q))
		return list.Operations, list.NextPageToken, err
	})
}

// listAudit returns audit events, newest first.
func listAudit(ctx context.Context, api *adminclient.Client, q adminclient.ListAuditParams, limit uint) ([]audit.Row, error) {
	return pages(limit, func(size *int, token *string) ([]audit.Row, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[wire.AuditPage](api.ListAudit(ctx, &q))
		return list.Events, list.NextPageToken, err
	})
}

// listTasks returns node tasks, newest first and without their output.
func listTasks(ctx context.Context, api *adminclient.Client, q adminclient.ListTasksParams, limit uint) ([]wire.TaskView, error) {
	return pages(limit, func(size *int, token *string) ([]wire.TaskView, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[wire.TaskList](api.ListTasks(ctx, &q))
		return list.Tasks, list.NextPageToken, err
	})
}

// act starts a lifecycle action; an empty key is none. With a key that was used before,
// the response has the earlier operation as it is now.
func act(ctx context.Context, api *adminclient.Client, node string, a lifecycle.Action, r wire.LifecycleRequest, key string) (wire.LifecycleResponse, error) {
	return decode[wire.LifecycleResponse](api.StartOperation(ctx, node, a, nil, r, idempotent(key)))
}

// idempotent sets the Idempotency-Key header.
func idempotent(key string) adminclient.RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		if key != "" {
			r.Header.Set(wire.HeaderIdempotencyKey, key)
		}
		return nil
	}
}

// given is nil for an empty text, for the optional parameters of a query.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// token returns the bearer token of the environment. It is never a flag, since
// flags show in the list of processes.
func (s *settings) token() (string, error) {
	path := s.getenv("GPUAAS_API_TOKEN_FILE")
	if t := s.getenv("GPUAAS_API_TOKEN"); t != "" || path == "" {
		return t, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", usagef("gpuaas", "reading GPUAAS_API_TOKEN_FILE: %s", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// tokenVariable returns the name of the environment variable whose token is used instead of a stored one, ""
// if there is none. The token of a context that --context names is used in any case.
func (s *settings) tokenVariable() string {
	for _, name := range []string{"GPUAAS_API_TOKEN", "GPUAAS_API_TOKEN_FILE"} {
		if s.flags.context == "" && s.getenv(name) != "" {
			return name
		}
	}
	return ""
}

// server returns the admin API to use: its URL, CA and token. Flags take
// precedence over the environment, and the environment over the current context.
// A stored token is sent to the stored URL only.
func (s *settings) server() (apiContext, error) {
	token, err := s.token()
	if err != nil {
		return apiContext{}, err
	}
	c, err := s.loadConfig()
	if err != nil {
		return apiContext{}, err
	}
	stored, err := c.selected(s.flags.context)
	if err != nil {
		return apiContext{}, err
	}
	named := apiContext{} // by --context
	if s.flags.context != "" {
		named = stored
	}
	used := apiContext{APIURL: cmp.Or(s.flags.apiURL, named.APIURL, s.getenv("GPUAAS_API_URL"), stored.APIURL, defaultAPIURL)}
	if used.APIURL == stored.APIURL {
		used.CAFile, used.Token = stored.CAFile, cmp.Or(named.Token, token, stored.Token)
		return used, nil
	}
	used.Token = token
	return used, nil
}
