package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultAPIURL = "http://127.0.0.1:8081"
	// apiBudget bounds one call to the admin API, startBudget one that starts a
	// workflow: the API itself waits for the workflow's early answer.
	apiBudget   = 10 * time.Second
	startBudget = 30 * time.Second
	// apiAnswerLimit bounds what is read of one answer.
	apiAnswerLimit = 64 << 20
	adminBase      = "/api/v1/admin"
)

// adminAPI is the client of the admin API. Every error it returns is a
// *schema.Error: the server's own, or KindServiceUnavailable with the URL when
// nobody answers.
type adminAPI struct {
	base          string
	token         string
	correlationID string
	http          *http.Client
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
	e.admin = &adminAPI{base: strings.TrimRight(base, "/"), token: token, correlationID: e.correlationID,
		http: &http.Client{}}
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

func (a *adminAPI) register(ctx context.Context, r wire.RegisterNodeRequest) (wire.NodeView, error) {
	var v wire.NodeView
	err := a.call(ctx, http.MethodPost, "/nodes", r, &v)
	return v, err
}

// node finds a node by id or host name.
func (a *adminAPI) node(ctx context.Context, idOrHost string) (wire.NodeView, error) {
	var v wire.NodeView
	err := a.call(ctx, http.MethodGet, "/nodes/"+url.PathEscape(idOrHost), nil, &v)
	return v, err
}

func (a *adminAPI) nodes(ctx context.Context) ([]wire.NodeView, error) {
	var v wire.NodeList
	err := a.call(ctx, http.MethodGet, "/nodes", nil, &v)
	return v.Nodes, err
}

// enroll starts the enrolment; the answer holds the bundle.
func (a *adminAPI) enroll(ctx context.Context, nodeID string, r wire.LifecycleRequest) (wire.LifecycleResponse, error) {
	var v wire.LifecycleResponse
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	err := a.call(ctx, http.MethodPost, "/nodes/"+url.PathEscape(nodeID)+"/enroll", r, &v)
	return v, err
}

// reissue starts a reissue; the answer holds the recovery bundle.
func (a *adminAPI) reissue(ctx context.Context, nodeID string, r wire.LifecycleRequest) (wire.LifecycleResponse, error) {
	var v wire.LifecycleResponse
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	err := a.call(ctx, http.MethodPost, "/nodes/"+url.PathEscape(nodeID)+"/reissue-enrollment", r, &v)
	return v, err
}

// bootstrapScript asks for a script that installs the agent.
func (a *adminAPI) bootstrapScript(ctx context.Context, nodeID string, r wire.BootstrapScriptRequest) (wire.BootstrapScriptResponse, error) {
	var v wire.BootstrapScriptResponse
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	err := a.call(ctx, http.MethodPost, "/nodes/"+url.PathEscape(nodeID)+"/bootstrap-script", r, &v)
	return v, err
}

// operations lists operations, newest first: of one node when nodeID is not
// empty, only those that are not over when open.
func (a *adminAPI) operations(ctx context.Context, nodeID string, open bool) ([]wire.OperationSummary, error) {
	q := url.Values{}
	if nodeID != "" {
		q.Set("node", nodeID)
	}
	if open {
		q.Set("open", "true")
	}
	var v wire.OperationList
	err := a.call(ctx, http.MethodGet, withQuery("/operations", q), nil, &v)
	return v.Operations, err
}

// audit returns a page of a stream's events after seq, or the list of streams
// when stream is empty.
func (a *adminAPI) audit(ctx context.Context, stream string, after int64, limit int) (wire.AuditPage, error) {
	q := url.Values{}
	if stream != "" {
		q.Set("node", stream)
		q.Set("after", strconv.FormatInt(after, 10))
		q.Set("limit", strconv.Itoa(limit))
	}
	var v wire.AuditPage
	err := a.call(ctx, http.MethodGet, withQuery("/audit", q), nil, &v)
	return v, err
}

// tasks lists node tasks, newest first and without what they printed: of one
// node (an id or a host name) when node is not empty, with those that are over
// when all.
func (a *adminAPI) tasks(ctx context.Context, node string, all bool) ([]wire.TaskView, error) {
	q := url.Values{}
	if node != "" {
		q.Set("node", node)
	}
	if all {
		q.Set("all", "true")
	}
	var v wire.TaskList
	err := a.call(ctx, http.MethodGet, withQuery("/tasks", q), nil, &v)
	return v.Tasks, err
}

// task returns a task with the end of what it printed.
func (a *adminAPI) task(ctx context.Context, taskID string) (wire.TaskView, error) {
	var v wire.TaskView
	err := a.call(ctx, http.MethodGet, "/tasks/"+url.PathEscape(taskID), nil, &v)
	return v, err
}

// resumeTask offers a lost task again and returns it as it is then.
func (a *adminAPI) resumeTask(ctx context.Context, taskID, reason string) (wire.TaskView, error) {
	return a.decideTask(ctx, taskID, "resume", reason)
}

// cancelTask ends a task, or asks its node to, and returns it as it is then.
func (a *adminAPI) cancelTask(ctx context.Context, taskID, reason string) (wire.TaskView, error) {
	return a.decideTask(ctx, taskID, "cancel", reason)
}

func (a *adminAPI) decideTask(ctx context.Context, taskID, verb, reason string) (wire.TaskView, error) {
	var v wire.TaskView
	err := a.call(ctx, http.MethodPost, "/tasks/"+url.PathEscape(taskID)+"/"+verb, wire.TaskDecision{Reason: reason}, &v)
	return v, err
}

func withQuery(path string, q url.Values) string {
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// call sends one request with in as its JSON body (none when nil) and reads the
// answer into out, within apiBudget unless ctx has a bound of its own.
func (a *adminAPI) call(ctx context.Context, method, path string, in, out any) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, apiBudget)
		defer cancel()
	}
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+adminBase+path, body)
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set(wire.HeaderCorrelationID, a.correlationID)
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	answer, err := a.http.Do(req)
	if err != nil {
		return a.unreachable(err)
	}
	defer answer.Body.Close()
	return a.read(answer, out)
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
