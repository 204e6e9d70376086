package adminapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// parked is a backend with a parked drain.
func parked() *backend {
	d := newBackend()
	id := schema.NewID()
	d.status = lifecycle.OperationStatus{Node: lifecycle.NodeRef{NodeID: d.node.ID, Host: "gpu-1"}, Operation: lifecycle.Operation{
		OperationID: id, WorkflowID: "node:" + d.node.ID, Action: lifecycle.ActionDrain, Status: lifecycle.OperationParked}}
	return d
}

func TestOperation(t *testing.T) {
	d := parked()
	w := d.request(t, http.MethodGet, "/operations/"+d.status.Operation.OperationID, "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	var v wire.OperationView
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v))
	assert.Equal(t, lifecycle.OperationParked, v.Operation.Status)
	assert.Contains(t, w.Body.String(), `"phases":[]`)
	assert.NotContains(t, w.Body.String(), "faults")
	d.runFaults = []wire.ControlPlaneFault{{Component: "tasks", Reason: "service_unavailable", Message: "Postgres does not respond"}}
	for _, c := range []struct {
		status lifecycle.OperationState
		err    error
		shown  bool
	}{
		{lifecycle.OperationRunning, nil, true},
		{lifecycle.OperationRunning, errors.New("no Temporal"), false},
		{lifecycle.OperationCompleted, nil, false},
		{lifecycle.OperationAbandoned, nil, false},
	} {
		d.status.Operation.Status, d.runErr = c.status, c.err
		w = d.request(t, http.MethodGet, "/operations/"+d.status.Operation.OperationID, "")
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		assert.Equal(t, c.shown, strings.Contains(w.Body.String(), `"faults":[{"component":"tasks"`), w.Body.String())
	}
	for _, id := range []string{"7", schema.NewID()} {
		assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodGet, "/operations/"+id, "").Code)
	}
	w = d.post(t, "drain", "")
	assert.Equal(t, "/api/v1/admin/operations/"+d.submitted.OperationID, w.Header().Get("Location"))
}

func TestResolve(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, decision := range lifecycle.Decisions() {
		d := parked()
		path := "/operations/" + d.status.Operation.OperationID + "/" + string(decision)
		w := d.request(t, http.MethodPost, path, `{"reason":"TCK-9","phase":"drain","stuck_since":"2026-03-01T12:00:00Z"}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		require.Len(t, d.resolved, 1)
		assert.True(t, schema.IsID(d.resolved[0].ID))
		assert.Equal(t, []lifecycle.ResolveRequest{{ID: d.resolved[0].ID, OperationID: d.status.Operation.OperationID, Phase: "drain", StuckSince: &since,
			Decision: decision, Reason: "TCK-9", By: "ops", Via: "api"}}, d.resolved)
		assert.Equal(t, d.status.Operation.WorkflowID, d.resolvedOn)

		d.resolved = nil
		for body, reason := range map[string]string{`{"reason":"TEXT"}`: "bad_reason", `{"reason":"a\nb"}`: "bad_reason", `{"by":"me"}`: "malformed_body"} {
			assert.Equal(t, reason, refusal(t, d.request(t, http.MethodPost, path, body)).Reason, body)
		}
		assert.Equal(t, "bad_reason", refusal(t, d.request(t, http.MethodPost, path, "")).Reason)
		d.status.Operation.Status, d.runEnd = lifecycle.OperationCompleted, lifecycle.RunClosed
		assert.Equal(t, schema.KindDecisionOutdated, refusal(t, d.request(t, http.MethodPost, path, `{"reason":"x"}`)).Code)
		assert.Empty(t, d.resolved)
	}
}

// Repeats with one key have the same decision id, so that Temporal delivers the
// decision once; another subject's decision with that key is another one.
func TestResolveOnce(t *testing.T) {
	d := parked()
	id := d.status.Operation.OperationID
	path := "/operations/" + id + "/retry"
	for range 2 {
		assert.Equal(t, http.StatusOK, d.request(t, http.MethodPost, path, `{"reason":"x"}`, wire.HeaderIdempotencyKey, "k").Code)
	}
	require.Len(t, d.resolved, 2)
	assert.Equal(t, d.resolved[0].ID, d.resolved[1].ID)
	assert.Equal(t, lifecycle.DecisionID(id, "ops", "k"), d.resolved[0].ID)
	assert.NotEqual(t, lifecycle.DecisionID(id, "alice", "k"), d.resolved[0].ID)
	d.status.Operation.Status, d.runEnd = lifecycle.OperationCompleted, lifecycle.RunClosed
	assert.Equal(t, http.StatusOK, d.request(t, http.MethodPost, path, `{"reason":"x"}`, wire.HeaderIdempotencyKey, "k").Code, "after the end")
	assert.Equal(t, schema.KindDecisionOutdated, refusal(t, d.request(t, http.MethodPost, path, `{"reason":"x"}`, wire.HeaderIdempotencyKey, "k2")).Code)
	assert.Len(t, d.resolved, 2)
	assert.Equal(t, "bad_idempotency_key", refusal(t, d.request(t, http.MethodPost, path, `{"reason":"x"}`, wire.HeaderIdempotencyKey, strings.Repeat("k", 129))).Reason)
}

// An operation may end after it was read: a repeated decision then returns the first
// response, and a new one is outdated.
func TestResolveWhileTheOperationEnds(t *testing.T) {
	d := parked()
	path := "/operations/" + d.status.Operation.OperationID + "/retry"
	decide := func(headers ...string) *httptest.ResponseRecorder {
		return d.request(t, http.MethodPost, path, `{"reason":"x"}`, headers...)
	}
	first := decide(wire.HeaderIdempotencyKey, "k")
	require.Equal(t, http.StatusOK, first.Code, first.Body.String())
	d.resolveErr = schema.NewError(schema.KindNotFound, "no run")
	again := decide(wire.HeaderIdempotencyKey, "k")
	assert.Equal(t, http.StatusOK, again.Code, again.Body.String())
	assert.Equal(t, first.Body.String(), again.Body.String())
	gone := refusal(t, decide())
	assert.Equal(t, "operation_abandoned", gone.Reason, "the operation did not end, and no run of it is open")
	assert.Equal(t, lifecycle.RehydrateCommand(d.status.Node.Host), gone.Next)
	d.status.Operation.Status = lifecycle.OperationCompleted
	for _, headers := range [][]string{nil, {wire.HeaderIdempotencyKey, "k2"}} {
		e := refusal(t, decide(headers...))
		assert.Equal(t, schema.KindDecisionOutdated, e.Code, headers)
		assert.Equal(t, "operation_over", e.Reason)
	}
}

// TestResolveResetRun: an operator may reset the run of an operation that ended. The
// decision reaches that run, so that it can be ended.
func TestResolveResetRun(t *testing.T) {
	d := parked()
	d.status.Operation.Status = lifecycle.OperationCompleted
	path := "/operations/" + d.status.Operation.OperationID + "/cancel"
	require.Equal(t, http.StatusOK, d.request(t, http.MethodPost, path, `{"reason":"x"}`).Code)
	require.Len(t, d.resolved, 1)
	d.runErr = schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")
	require.Equal(t, schema.KindServiceUnavailable, refusal(t, d.request(t, http.MethodPost, path, `{"reason":"x"}`)).Code, "it is not known")
	d.runErr, d.runEnd = nil, lifecycle.RunTerminated
	require.Equal(t, "operation_over", refusal(t, d.request(t, http.MethodPost, path, `{"reason":"x"}`)).Reason)
	require.Len(t, d.resolved, 1)
}

// TestStoredCancelIsAudited: the run takes a cancel that Temporal stored without its
// subject and reason, so the API audits it.
func TestStoredCancelIsAudited(t *testing.T) {
	d := parked()
	path := "/operations/" + d.status.Operation.OperationID + "/cancel"
	d.resolveErr = schema.NewError(schema.KindServiceUnavailable, "no worker").WithReason("no_worker")
	require.Equal(t, "no_worker", refusal(t, d.request(t, http.MethodPost, path, `{"reason":"x"}`)).Reason)
	require.Empty(t, d.noted)
	d.resolveErr = schema.NewError(schema.KindServiceUnavailable, "Temporal stored the cancel").WithReason(lifecycle.ReasonCancelStored)
	require.Equal(t, lifecycle.ReasonCancelStored, refusal(t, d.request(t, http.MethodPost, path, `{"reason":"wrong node"}`)).Reason)
	require.Len(t, d.noted, 1)
	require.Equal(t, []string{"wrong node", "ops", "api"}, []string{d.noted[0].Reason, d.noted[0].By, d.noted[0].Via})
	d.noteErr = schema.NewError(schema.KindServiceUnavailable, "Postgres does not respond")
	e := refusal(t, d.request(t, http.MethodPost, path, `{"reason":"wrong node"}`))
	require.Contains(t, e.Message, "Temporal stored the cancel; the audit trail does not have the decision: Postgres")
	require.Contains(t, e.Next, "repeat the command")
}

// A key registers one node: a repeat returns it, even after a crash before the
// response, and a request with other content is rejected.
func TestRegisterOnce(t *testing.T) {
	const body = `{"host":"gpu-1","sku":"h100","region_code":"r1","labels":{"rack":"r7"}}`
	d := newBackend()
	post := func(body string, headers ...string) *httptest.ResponseRecorder {
		return d.request(t, http.MethodPost, "/nodes", body, headers...)
	}
	w := post(body, wire.HeaderIdempotencyKey, "k")
	require.Equal(t, http.StatusCreated, w.Code, w.Body.String())
	assert.Equal(t, lifecycle.NodeID("ops", "k"), d.node.ID)
	assert.Equal(t, "/api/v1/admin/nodes/"+d.node.ID, w.Header().Get("Location"))

	d.registerErr = schema.NewError(schema.KindInvalidRequest, "taken").WithReason("host_taken")
	again := post(body, wire.HeaderIdempotencyKey, "k")
	assert.Equal(t, http.StatusCreated, again.Code, again.Body.String())
	assert.Equal(t, w.Body.String(), again.Body.String())
	for _, other := range []string{strings.Replace(body, "gpu-1", "gpu-2", 1), strings.Replace(body, "r7", "r8", 1), strings.Replace(body, `"r1"`, `"r1","gpus_total":4`, 1)} {
		e := refusal(t, post(other, wire.HeaderIdempotencyKey, "k"))
		assert.Equal(t, "key_in_use", e.Reason, other)
		assert.Contains(t, e.Message, d.node.ID)
	}
	for _, headers := range [][]string{nil, {wire.HeaderIdempotencyKey, "new"}} {
		assert.Equal(t, "host_taken", refusal(t, post(body, headers...)).Reason)
	}
}

func TestListNodes(t *testing.T) {
	d := newBackend()
	d.next = []string{"gpu-1", "id"}
	w := d.request(t, http.MethodGet, "/nodes?limit=7&state=active,offline&sku=h100&selector=rack%3Dr1,tier&removed=true&host_prefix=gpu-", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	q, _ := d.asked.(adminapi.NodeQuery)
	assert.Equal(t, adminapi.NodeQuery{Page: adminapi.Page{Limit: 7}, States: []lifecycle.NodeState{"active", "offline"}, SKUs: []string{"h100"},
		HostPrefix: "gpu-", Removed: true, View: adminapi.ViewSummary, Selector: adminapi.Selector{
			{Key: "rack", Op: adminapi.OpIn, Values: []string{"r1"}}, {Key: "tier", Op: adminapi.OpExists}}}, q)
	var list struct {
		Nodes []map[string]any `json:"nodes"`
		Next  string           `json:"next_page_token"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	assert.NotContains(t, list.Nodes[0], "facts")
	assert.NotContains(t, list.Nodes[0], "workloads")
	d.request(t, http.MethodGet, "/nodes?page_token="+list.Next, "")
	q, _ = d.asked.(adminapi.NodeQuery)
	assert.Equal(t, d.next, q.After)
	w = d.request(t, http.MethodGet, "/nodes?fields=id,host,state", "")
	assert.JSONEq(t, `{"nodes":[{"id":"`+d.node.ID+`","host":"gpu-1","state":""}],"next_page_token":"`+list.Next+`"}`, w.Body.String())
	w = d.request(t, http.MethodGet, "/nodes?fields=host,workloads", "")
	assert.Contains(t, w.Body.String(), `{"host":"gpu-1","workloads":null}`)
	for query, reason := range map[string]string{
		"limit=0": "bad_limit", "limit=1001": "bad_limit", "limit=x": "bad_limit", "page_token=x": "bad_page_token", "page_token=W10": "bad_page_token",
		"state=gone": "bad_state", "selector=%3D": "bad_selector", "view=name": "unknown_parameter", "fields=a%20b": "bad_fields",
		"removed=perhaps": "bad_removed", "size=red": "unknown_parameter", "limit=1&limit=2": "bad_limit", "host_prefix=%27": "bad_host_prefix",
	} {
		w := d.request(t, http.MethodGet, "/nodes?"+query, "")
		assert.Equal(t, http.StatusBadRequest, w.Code, query)
		assert.Equal(t, reason, refusal(t, w).Reason, query)
	}
}

func TestSetNode(t *testing.T) {
	d := newBackend()
	w := d.request(t, http.MethodPatch, "/nodes/gpu-1", `{"gpus_total":4,"labels":{"rack":"r2"},"remove_labels":["old"],"reason":"moved"}`)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Equal(t, "ops", d.by.Actor)
	assert.Equal(t, 4, *d.change.GPUsTotal)
	w = d.request(t, http.MethodPatch, "/nodes/gpu-1", `{"unset_workload_driver":true}`)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.True(t, d.change.UnsetWorkloadDriver)
	w = d.request(t, http.MethodPatch, "/nodes/gpu-1", `{"workload_driver":"docker,systemd"}`)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Equal(t, "docker,systemd", d.change.WorkloadDriver)
	for body, reason := range map[string]string{
		"{}": "empty_change", `{"gpus_total":-1}`: "bad_gpus_total", `{"labels":{"a b":"c"}}`: "bad_labels", `{"labels":{"a":"b c"}}`: "bad_labels",
		`{"labels":{"sku":"x"}}`: "bad_labels", `{"labels":{"a":"b"},"remove_labels":["a"]}`: "bad_remove_labels", `{"host":"x"}`: "malformed_body",
		`{"sku":"a b"}`: "bad_sku", `{"region_code":"a b"}`: "bad_region_code",
		`{"workload_driver":"docker","unset_workload_driver":true}`: "bad_unset_workload_driver", `{"unset_workload_driver":false}`: "empty_change",
		`{"workload_driver":"none,docker"}`: "bad_workload_driver", `{"workload_driver":"docker, systemd"}`: "bad_workload_driver",
	} {
		assert.Equal(t, reason, refusal(t, d.request(t, http.MethodPatch, "/nodes/gpu-1", body)).Reason, body)
	}
}

// tokenLine is the line of the tokens file for the token token-of-NAME.
func tokenLine(name, role string) string {
	sum := sha256.Sum256([]byte("token-of-" + name))
	return name + " " + role + " " + hex.EncodeToString(sum[:]) + "\n"
}

func tokensFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600))
	return path
}

// Each subject may do what its role allows and nothing else.
func TestRoles(t *testing.T) {
	d := parked()
	d.tokens = tokensFile(t, "# subjects\n\n", tokenLine("vic", "viewer"), tokenLine("olga", "operator"), tokenLine("ada", "admin"), tokenLine("boot", "bootstrapper"), tokenLine("rep", "reporter"))
	handler := d.api().Handler()
	try := func(name, method, path string) schema.Kind {
		r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1/admin"+path, strings.NewReader(map[string]string{http.MethodPost: `{"reason":"x"}`}[method]))
		r.Header.Set("Authorization", "Bearer token-of-"+name)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code < 300 {
			return ""
		}
		return refusal(t, w).Code
	}
	operation := "/operations/" + d.status.Operation.OperationID
	forbidden := schema.KindForbidden
	for _, c := range []struct {
		name, method, path string
		want               schema.Kind
	}{
		{"vic", http.MethodGet, "/nodes", ""}, {"vic", http.MethodPost, "/nodes/gpu-1/drain", forbidden}, {"vic", http.MethodPost, operation + "/retry", forbidden},
		{"olga", http.MethodPost, "/nodes/gpu-1/drain", ""}, {"olga", http.MethodPost, operation + "/retry", ""},
		{"olga", http.MethodPost, operation + "/force", forbidden}, {"olga", http.MethodPost, "/nodes/gpu-1/remove", forbidden},
		{"olga", http.MethodPost, "/nodes/gpu-1/terminate", forbidden}, {"ada", http.MethodPost, "/nodes/gpu-1/terminate", ""},
		{"ada", http.MethodPost, "/nodes/gpu-1/remove", ""}, {"ada", http.MethodPost, operation + "/force", ""},
		{"boot", http.MethodGet, "/nodes", forbidden}, {"boot", http.MethodPost, "/nodes/gpu-1/bootstrap-script", schema.KindInvalidRequest},
		{"vic", http.MethodPost, "/audit/accept-gap", forbidden}, {"olga", http.MethodPost, "/audit/accept-gap", forbidden},
		{"rep", http.MethodGet, "/nodes", ""}, {"rep", http.MethodGet, "/nodes/gpu-1", ""}, {"rep", http.MethodPost, "/nodes/gpu-1/drain", forbidden},
		{"rep", http.MethodGet, "/signals", forbidden}, {"rep", http.MethodGet, "/audit", forbidden}, {"vic", http.MethodPut, "/nodes/gpu-1/conditions", forbidden},
		{"boot", http.MethodPost, "/nodes/gpu-1/enroll", forbidden}, {"mallory", http.MethodGet, "/nodes", schema.KindUnauthenticated},
	} {
		assert.Equal(t, c.want, try(c.name, c.method, c.path), "%s %s %s", c.name, c.method, c.path)
	}
}

// Each role may use exactly these endpoints, whatever the table of endpoints says. A new endpoint
// that changes something is the admin's until this list has it.
func TestRolesOfEveryEndpoint(t *testing.T) {
	d := parked()
	d.tokens = tokensFile(t, tokenLine("vic", "viewer"), tokenLine("olga", "operator"), tokenLine("ada", "admin"), tokenLine("boot", "bootstrapper"), tokenLine("rep", "reporter"))
	api := d.api()
	handler := api.Handler()
	script, report := "POST /nodes/{node}/bootstrap-script", "PUT /nodes/{node}/conditions"
	operators := []string{script, report, "POST /nodes", "PATCH /nodes/{node}", "POST /nodes/{node}/rehydrate", "POST /nodes/{node}/lock",
		"POST /tasks/{task_id}/resume", "POST /tasks/{task_id}/cancel"}
	for _, p := range lifecycle.Operations() {
		if p.Action != lifecycle.ActionTerminate && p.Action != lifecycle.ActionRemove {
			operators = append(operators, "POST /nodes/{node}/"+string(p.Action))
		}
	}
	for _, decision := range lifecycle.Decisions() {
		if decision != lifecycle.DecisionForce {
			operators = append(operators, "POST /operations/{operation_id}/"+string(decision))
		}
	}
	may := map[string]func(endpoint string) bool{
		"vic":  func(e string) bool { return strings.HasPrefix(e, "GET ") },
		"boot": func(e string) bool { return e == script },
		"rep":  func(e string) bool { return e == report || e == "GET /nodes" || e == "GET /nodes/{node}" },
		"olga": func(e string) bool { return strings.HasPrefix(e, "GET ") || slices.Contains(operators, e) },
		"ada":  func(string) bool { return true },
	}
	ended, cancel := context.WithCancel(t.Context()) // a stream of events ends at once
	cancel()
	fill := strings.NewReplacer("{node}", "gpu-1", "{operation_id}", d.status.Operation.OperationID, "{task_id}", schema.NewID(), "{sku}", "h100", "{stream}", "system")
	for _, e := range api.Endpoints() {
		name := e.Method + " " + strings.TrimPrefix(e.Path, "/api/v1/admin")
		for subject, allowed := range may {
			r := httptest.NewRequestWithContext(ended, e.Method, fill.Replace(e.Path), nil)
			r.Header.Set("Authorization", "Bearer token-of-"+subject)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			assert.Equal(t, !allowed(name), w.Code == http.StatusForbidden, "%s as %s: %d", name, subject, w.Code)
		}
	}
}
