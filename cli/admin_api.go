package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultAPIURL = "http://127.0.0.1:8081"
	// apiBudget bounds one call to the admin API, startBudget one that starts a
	// workflow: the API itself waits for the workflow's early answer.
	apiBudget   = 10 * time.Second
	startBudget = 30 * time.Second
	// apiAnswerLimit bounds what is read of one answer.
	apiAnswerLimit = 16 << 20
)

// adminAPI is the client of the admin API. Every error it returns is a
// *schema.Error: the server's own, or KindServiceUnavailable with the URL when
// nobody answers.
type adminAPI struct {
	base   string
	client *adminclient.Client
}

// api returns the admin API's client.
func (e *env) api() (*adminAPI, error) {
	if e.admin != nil {
		return e.admin, nil
	}
	base := cmp.Or(e.flags.apiURL, e.getenv("GPUAAS_API_URL"), defaultAPIURL)
	u, err := url.Parse(base)
	if err == nil && u.User != nil {
		return nil, usagef("gpuaas", "the admin API's URL holds a user or password: give the token in GPUAAS_API_TOKEN instead")
	}
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, usagef("gpuaas", "the admin API's URL %q is not one: give http://HOST:PORT (--api-url or GPUAAS_API_URL)", base)
	}
	token, err := e.apiToken()
	if err != nil {
		return nil, err
	}
	e.admin = &adminAPI{base: strings.TrimRight(base, "/")}
	headers := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Accept", "application/json")
		r.Header.Set(wire.HeaderCorrelationID, e.correlationID)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return nil
	}
	e.admin.client, err = adminclient.NewClient(e.admin.base, adminclient.WithHTTPClient(&http.Client{Transport: bounded{}}),
		adminclient.WithRequestEditorFn(headers))
	if err != nil {
		return nil, fmt.Errorf("making the admin API's client: %w", err)
	}
	return e.admin, nil
}

// apiToken reads the bearer token. It is never a flag, since flags show in the
// list of processes.
func (e *env) apiToken() (string, error) {
	if t := e.getenv("GPUAAS_API_TOKEN"); t != "" {
		return t, nil
	}
	path := e.getenv("GPUAAS_API_TOKEN_FILE")
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", usagef("gpuaas", "reading GPUAAS_API_TOKEN_FILE: %s", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// answer reads a response, or the refusal in it, as T.
func answer[T any](a *adminAPI, response *http.Response, err error) (T, error) {
	var v T
	if err != nil {
		return v, a.unreachable(err)
	}
	defer response.Body.Close()
	err = a.read(response, &v)
	return v, err
}

func (a *adminAPI) register(ctx context.Context, r wire.RegisterNodeRequest) (wire.NodeView, error) {
	res, err := a.client.RegisterNode(ctx, nil, r)
	return answer[wire.NodeView](a, res, err)
}

// node finds a node by id or host name.
func (a *adminAPI) node(ctx context.Context, idOrHost string) (wire.NodeView, error) {
	res, err := a.client.GetNode(ctx, idOrHost, nil)
	return answer[wire.NodeView](a, res, err)
}

func (a *adminAPI) setNode(ctx context.Context, nodeID string, c wire.NodeChange) (wire.NodeView, error) {
	res, err := a.client.SetNode(ctx, nodeID, nil, c)
	return answer[wire.NodeView](a, res, err)
}

// nodePage returns one page of nodes.
func (a *adminAPI) nodePage(ctx context.Context, q adminclient.ListNodesParams) (wire.NodeList, error) {
	res, err := a.client.ListNodes(ctx, &q)
	return answer[wire.NodeList](a, res, err)
}

// nodes returns the nodes of a query, reading page by page up to limit, or all
// when limit is 0.
func (a *adminAPI) nodes(ctx context.Context, q adminclient.ListNodesParams, limit int) ([]wire.NodeView, error) {
	return pages(limit, func(size int, token *string) ([]wire.NodeView, string, error) {
		q.Limit, q.PageToken = &size, token
		list, err := a.nodePage(ctx, q)
		return list.Nodes, list.NextPageToken, err
	})
}

// pages collects the pages of a list up to limit rows, or all when limit is 0.
func pages[T any](limit int, next func(size int, token *string) ([]T, string, error)) ([]T, error) {
	out := []T{}
	var token *string
	for {
		size := wire.MaxPage
		if limit > 0 {
			size = min(size, limit-len(out))
		}
		rows, after, err := next(size, token)
		if out = append(out, rows...); err != nil || after == "" || limit > 0 && len(out) >= limit {
			return out, err
		}
		if token != nil && *token == after {
			return out, schema.Errorf(schema.KindInternal, "the admin API returned the same page twice")
		}
		token = &after
	}
}

// act starts a lifecycle action; key is its idempotency key, empty for none.
func (a *adminAPI) act(ctx context.Context, nodeID string, action lifecycle.Action, r wire.LifecycleRequest, key string) (wire.LifecycleResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	res, err := a.client.StartOperation(ctx, nodeID, action, nil, r, idempotent(key))
	return answer[wire.LifecycleResponse](a, res, err)
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

// bootstrapScript asks for a script that installs the agent.
func (a *adminAPI) bootstrapScript(ctx context.Context, nodeID string, r wire.BootstrapScriptRequest) (wire.BootstrapScriptResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	res, err := a.client.MakeBootstrapScript(ctx, nodeID, nil, r)
	return answer[wire.BootstrapScriptResponse](a, res, err)
}

// operations returns operations, newest first, up to limit.
func (a *adminAPI) operations(ctx context.Context, q adminclient.ListOperationsParams, limit int) ([]wire.OperationSummary, error) {
	return pages(limit, func(size int, token *string) ([]wire.OperationSummary, string, error) {
		q.Limit, q.PageToken = &size, token
		res, err := a.client.ListOperations(ctx, &q)
		list, err := answer[wire.OperationList](a, res, err)
		return list.Operations, list.NextPageToken, err
	})
}

// operation returns an operation's whole status.
func (a *adminAPI) operation(ctx context.Context, id string) (wire.OperationView, error) {
	res, err := a.client.GetOperation(ctx, id, nil)
	return answer[wire.OperationView](a, res, err)
}

// resolve delivers a decision and returns the status after it.
func (a *adminAPI) resolve(ctx context.Context, id string, d lifecycle.Decision, r wire.ResolveOperation, key string) (wire.OperationView, error) {
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	res, err := a.client.DecideOperation(ctx, id, d, nil, r, idempotent(key))
	return answer[wire.OperationView](a, res, err)
}

// stuck returns everything that needs attention, oldest first.
func (a *adminAPI) stuck(ctx context.Context) (wire.StuckList, error) {
	var all wire.StuckList
	rows, err := pages(0, func(size int, token *string) ([]wire.StuckOperation, string, error) {
		res, err := a.client.ListStuck(ctx, &adminclient.ListStuckParams{Limit: &size, PageToken: token})
		list, err := answer[wire.StuckList](a, res, err)
		all.Faults = list.Faults
		return list.Stuck, list.NextPageToken, err
	})
	all.Stuck = rows
	return all, err
}

// audit returns the newest events, up to limit, or all when limit is 0.
func (a *adminAPI) audit(ctx context.Context, q adminclient.ListAuditParams, limit int) ([]audit.Event, error) {
	return pages(limit, func(size int, token *string) ([]audit.Event, string, error) {
		q.Limit, q.PageToken = &size, token
		res, err := a.client.ListAudit(ctx, &q)
		list, err := answer[wire.AuditPage](a, res, err)
		return list.Events, list.NextPageToken, err
	})
}

func (a *adminAPI) auditStreams(ctx context.Context) ([]string, error) {
	res, err := a.client.ListAuditStreams(ctx, nil)
	list, err := answer[wire.AuditStreamList](a, res, err)
	return list.Streams, err
}

// auditStream returns a part of one stream after seq.
func (a *adminAPI) auditStream(ctx context.Context, stream string, after int64, limit int) (wire.AuditStreamPage, error) {
	res, err := a.client.ReadAuditStream(ctx, stream, &adminclient.ReadAuditStreamParams{After: &after, Limit: &limit})
	return answer[wire.AuditStreamPage](a, res, err)
}

// tasks returns node tasks, newest first and without their output, up to limit.
func (a *adminAPI) tasks(ctx context.Context, node string, all bool, limit int) ([]wire.TaskView, error) {
	q := adminclient.ListTasksParams{All: &all}
	if node != "" {
		q.Node = &node
	}
	return pages(limit, func(size int, token *string) ([]wire.TaskView, string, error) {
		q.Limit, q.PageToken = &size, token
		res, err := a.client.ListTasks(ctx, &q)
		list, err := answer[wire.TaskList](a, res, err)
		return list.Tasks, list.NextPageToken, err
	})
}

// task returns a task with the end of its output.
func (a *adminAPI) task(ctx context.Context, taskID string) (wire.TaskView, error) {
	if !schema.IsID(taskID) {
		return wire.TaskView{}, schema.Errorf(schema.KindNotFound, "no task %q", taskID)
	}
	res, err := a.client.GetTask(ctx, uuid.MustParse(taskID), nil)
	return answer[wire.TaskView](a, res, err)
}

// resumeTask dispatches a lost task again and returns it as it is then.
func (a *adminAPI) resumeTask(ctx context.Context, taskID, reason string) (wire.TaskView, error) {
	res, err := a.client.ResumeTask(ctx, uuid.MustParse(taskID), nil, wire.TaskDecision{Reason: reason})
	return answer[wire.TaskView](a, res, err)
}

// cancelTask ends a task, or asks its node to, and returns it as it is then.
func (a *adminAPI) cancelTask(ctx context.Context, taskID, reason string) (wire.TaskView, error) {
	res, err := a.client.CancelTask(ctx, uuid.MustParse(taskID), nil, wire.TaskDecision{Reason: reason})
	return answer[wire.TaskView](a, res, err)
}

// bounded gives a request apiBudget unless its context has a deadline.
type bounded struct{}

// RoundTrip implements http.RoundTripper.
func (bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, set := r.Context().Deadline(); set {
		return http.DefaultTransport.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), apiBudget)
	response, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = &cancelBody{response.Body, cancel}
	return response, nil
}

// cancelBody releases its request's deadline when it is closed.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *cancelBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

func (a *adminAPI) read(answer *http.Response, out any) error {
	text, err := io.ReadAll(io.LimitReader(answer.Body, apiAnswerLimit))
	if err != nil {
		return a.unreachable(err)
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		return a.refusal(answer.StatusCode, text)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return schema.Wrap(schema.KindInternal, err, "the admin API at %s answered with something that is not its JSON", a.base)
	}
	return nil
}

func (a *adminAPI) unreachable(cause error) error {
	e := schema.NewError(schema.KindServiceUnavailable, "the admin API at %s does not answer", a.base).
		WithReason("api_unreachable").WithNext("check --api-url or GPUAAS_API_URL, or run: gpuaas dev status")
	e.Err = cause
	return e
}

// refusal turns an answer that is no success into the error it carries, or into
// one by its status when it carries none.
func (a *adminAPI) refusal(code int, text []byte) error {
	var body schema.ErrorBody
	failure := &schema.Error{Kind: kindOfStatus(code),
		Message: fmt.Sprintf("the admin API at %s answered %d %s", a.base, code, http.StatusText(code))}
	if err := json.Unmarshal(text, &body); err == nil && body.Error.Code != "" {
		failure = body.AsError()
	}
	if failure.Kind == schema.KindUnauthenticated && failure.Next == "" {
		failure.Next = "set GPUAAS_API_TOKEN or GPUAAS_API_TOKEN_FILE; on the development stack: eval \"$(gpuaas dev env)\""
	}
	return failure
}

func kindOfStatus(code int) schema.Kind {
	switch code {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return schema.KindServiceUnavailable
	}
	for _, r := range schema.Kinds() {
		if r.HTTP == code {
			return r.Kind
		}
	}
	return schema.KindInternal
}
