package adminapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A filter with a fixed set of values rejects any other value and lists them.
func TestFilterValues(t *testing.T) {
	d := newBackend()
	for query, says := range map[string]string{
		"/nodes?state=gone":                   "state must be one of registered, ",
		"/nodes?fields=id,secret":             "fields must be one of ",
		"/nodes?limit=-3":                     "limit must be a number from 1 to 1000",
		"/nodes?sort=host":                    "unknown query parameter",
		"/operations?status=open":             "status must be one of accepted, running, parked, ",
		"/operations?action=destroy":          "action must be one of enroll, ",
		"/operations?waiting_on=me":           "waiting_on must be one of none, agent, ",
		"/operations?fields=x":                "fields must be one of action, actor, ",
		"/stuck?action=destroy":               "action must be one of enroll, ",
		"/stuck?reason=Bad%20Luck":            "reason must have the characters of a code such as drain_blocked",
		"/tasks?type=node.explode":            "type must be one of ",
		"/tasks?status=done":                  "status must be one of pending, ",
		"/tasks?fields=x":                     "fields must be one of ",
		"/audit?action=nodes.explode":         "action must be one of ",
		"/audit?result=ok":                    "result must be one of accepted, ",
		"/audit?fields=x":                     "fields must be one of action, actor, ",
		"/events?kind=metrics":                "kind must be one of operation, audit",
		"/audit/streams/system?limit=1000000": "limit must be a number from 1 to 1000",
	} {
		w := d.request(t, http.MethodGet, query, "")
		assert.Equal(t, http.StatusBadRequest, w.Code, query)
		assert.Contains(t, refusal(t, w).Message, says, query)
	}
	for _, query := range []string{"/operations?reason=vault_sealed,signer_mismatch", "/nodes?fields=facts,host", "/operations?status=rejected&fields=stuck", "/tasks?type=workload.drain",
		"/audit?action=nodes.reissue_enrollment,operations.resolve&result=parked&fields=detail"} {
		assert.Equal(t, http.StatusOK, d.request(t, http.MethodGet, query, "").Code, query)
	}
}

// No request that would be stored may contain a secret.
func TestSecretsInRequests(t *testing.T) {
	d := parked()
	d.task = wire.TaskView{TaskID: schema.NewID()}
	secret := trust.APITokenPrefix + "0123456789abcdef"
	for _, c := range []struct{ method, path, body string }{
		{http.MethodPost, "/nodes", `{"host":"gpu-9","sku":"h100","region_code":"r1","labels":{"note":"` + secret + `"}}`},
		{http.MethodPatch, "/nodes/gpu-1", `{"labels":{"note":"` + secret + `"}}`},
		{http.MethodPatch, "/nodes/gpu-1", `{"gpus_total":4,"reason":"` + secret + `"}`},
		{http.MethodPost, "/nodes/gpu-1/drain", `{"reason":"` + secret + `"}`},
		{http.MethodPost, "/operations/" + d.status.Operation.OperationID + "/retry", `{"reason":"` + secret + `"}`},
		{http.MethodPost, "/tasks/" + d.task.TaskID + "/cancel", `{"reason":"` + secret + `"}`},
	} {
		e := refusal(t, d.request(t, c.method, c.path, c.body))
		assert.Equal(t, "secret_in_request", e.Reason, c.path)
		assert.NotContains(t, e.Message, secret)
	}
	assert.Empty(t, d.steps)
	assert.Empty(t, d.resolved)
	assert.Empty(t, d.decided)
	d.request(t, http.MethodPost, "/nodes/gpu-1/drain", "", wire.HeaderCorrelationID, secret)
	assert.True(t, schema.IsID(d.submitted.CorrelationID), d.submitted.CorrelationID)
}

// An error of any kind has a next step, also where the code that makes it gives none, and one
// that it gives stays.
func TestEveryKindHasANextStep(t *testing.T) {
	for _, k := range schema.Kinds() {
		d := newBackend()
		d.submitErr = schema.NewError(k.Kind, "no")
		d.node.State = lifecycle.NodeRegistered
		w := d.request(t, http.MethodPost, "/nodes/gpu-1/provision", "")
		assert.Equal(t, k.HTTP, w.Code, k.Kind)
		assert.NotEmpty(t, refusal(t, w).Next, k.Kind)
		if k.Retry {
			continue // the outcome is unknown, so the step is another
		}
		d.submitErr = schema.NewError(k.Kind, "no").WithNext("do this")
		assert.Equal(t, "do this", refusal(t, d.request(t, http.MethodPost, "/nodes/gpu-1/provision", "")).Next, k.Kind)
	}
	d := newBackend()
	for _, c := range []struct{ method, path, body, next string }{
		{http.MethodPatch, "/nodes/gpu-1", `{"gpus_total":4,"reason":"TEXT"}`, "give a reason"},
		{http.MethodPatch, "/nodes/gpu-1", `{"sku":"a b"}`, "correct sku"},
		{http.MethodPatch, "/nodes/gpu-1", `{`, "correct the request"},
		{http.MethodGet, "/nodes/a/b/c", "", "API reference"},
		{http.MethodGet, "/skus", "x", "correct the request"},
	} {
		assert.Contains(t, refusal(t, d.request(t, c.method, c.path, c.body)).Next, c.next, c.path+c.body)
	}
}

// Each rejection names the step that resolves it.
func TestNextSteps(t *testing.T) {
	d := parked()
	d.tokens = tokensFile(t, tokenLine("vic", "viewer"))
	d.node.State = lifecycle.NodeActive
	d.submitErr = schema.NewError(schema.KindInvalidRequest, "cannot reactivate a node that is active").WithReason("invalid_state")
	d.registerErr = schema.NewError(schema.KindInvalidRequest, "taken").WithReason("host_taken")
	operation := "/operations/" + d.status.Operation.OperationID
	for _, c := range []struct {
		method, path, token string
		status              int
		next                string
	}{
		{http.MethodPost, "/nodes/gpu-1/explode", token, http.StatusNotFound, "the path must end in one of bootstrap-script, cause, conditions, drain, drift, enroll, "},
		{http.MethodPost, operation + "/explode", token, http.StatusNotFound, "the path must end in one of cancel, extend, force, retry, skip"},
		{http.MethodGet, "/nodez", token, http.StatusNotFound, "the path must end in one of audit, capacity, drift, durations, events, fleet, instances, nodes, operations, providers, recovery, signals, skus, stuck, tasks, templates, trust, version"},
		{http.MethodGet, "/operations/7", token, http.StatusNotFound, "gpuaas op list"},
		{http.MethodGet, "/tasks/7", token, http.StatusNotFound, "gpuaas task list --all"},
		{http.MethodGet, "/nodes/-", token, http.StatusNotFound, "gpuaas node list"},
		{http.MethodPost, "/nodes", token, http.StatusBadRequest, "gpuaas node show gpu-9"},
		{http.MethodPost, "/nodes/gpu-1/drain", "token-of-vic", http.StatusForbidden, "use a token of a subject with the role operator or admin"},
		{http.MethodDelete, "/nodes", token, http.StatusMethodNotAllowed, "send GET, POST"},
		{http.MethodPost, "/nodes/gpu-1/reactivate", token, http.StatusBadRequest, "actions that start in state active: provision, quarantine, drain, "},
	} {
		body := ""
		if c.path == "/nodes" && c.method == http.MethodPost {
			body = `{"host":"gpu-9","sku":"h100","region_code":"r1"}`
		}
		w := d.request(t, c.method, c.path, body, "Authorization", "Bearer "+c.token)
		assert.Equal(t, c.status, w.Code, c.path)
		assert.Contains(t, refusal(t, w).Next, c.next, c.path)
	}
	// No action starts in the state draining: the next step is the operation in progress.
	held := schema.NewID()
	d.node.State, d.node.Operation = lifecycle.NodeDraining, &wire.OperationSummary{OperationID: held}
	rejected := refusal(t, d.request(t, http.MethodPost, "/nodes/gpu-1/reactivate", ""))
	assert.Equal(t, "gpuaas op show gpu-1", rejected.Next)
	assert.Contains(t, rejected.Message, "; operation "+held+" holds the node")
	// An abandoned operation is superseded: the actions are those of the state before it.
	d.node.Operation.Status, d.node.Operation.PriorState = lifecycle.OperationAbandoned, lifecycle.NodeOffline
	next := refusal(t, d.request(t, http.MethodPost, "/nodes/gpu-1/reactivate", "")).Next
	assert.Contains(t, next, "actions that start in state offline: ")
	// An open enrollment gets a new token from the script.
	d.node.State, d.node.Operation = lifecycle.NodeBootstrapIssued, &wire.OperationSummary{OperationID: held, Action: lifecycle.ActionEnroll}
	d.submitErr = schema.NewError(schema.KindOperationInProgress, "enroll is in progress").WithNext("gpuaas op watch gpu-1")
	for action, hint := range map[string]string{"enroll": "; for a new token: gpuaas node bootstrap-script gpu-1", "remove": ""} {
		e := refusal(t, d.request(t, http.MethodPost, "/nodes/gpu-1/"+action, ""))
		assert.Equal(t, []string{"enroll is in progress" + hint, "gpuaas op watch gpu-1"}, []string{e.Message, e.Next})
	}
	// An enrollment that waits for an agent keeps the provider from creating the machine.
	for phase, hint := range map[string]string{lifecycle.PhaseClaim: "; to end the enrollment: gpuaas op cancel gpu-1 --operation " + held + " --reason TEXT", lifecycle.PhasePoll: ""} {
		d.node.Operation.Phase = phase
		e := refusal(t, d.request(t, http.MethodPost, "/nodes/gpu-1/provision", ""))
		assert.Equal(t, []string{"enroll is in progress", "gpuaas op watch gpu-1" + hint}, []string{e.Message, e.Next}, phase)
	}
	// A reissue runs beside a provisioning, so that another reissue refused it, but not beside a drain.
	d.node.State = lifecycle.NodeActive
	for running, hint := range map[lifecycle.Action]string{lifecycle.ActionProvision: "; for a new token: gpuaas node bootstrap-script gpu-1", lifecycle.ActionDrain: ""} {
		d.node.Operation = &wire.OperationSummary{OperationID: held, Action: running}
		e := refusal(t, d.request(t, http.MethodPost, "/nodes/gpu-1/reissue-enrollment", ""))
		assert.Equal(t, []string{"enroll is in progress" + hint, "gpuaas op watch gpu-1"}, []string{e.Message, e.Next}, running)
	}
	assert.Equal(t, "GET, POST", d.request(t, http.MethodDelete, "/nodes", "").Header().Get("Allow"))
}
