package console_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const operationPath = "/operations/" + operationID

// operation is the status document of the parked drain.
func operation() wire.OperationView {
	p := parked()
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	o := lifecycle.Operation{OperationID: p.OperationID, WorkflowID: "node:gpu-17:" + nodeID, RunID: "run-1", Action: p.Action, Status: p.Status,
		Phases: plan.Statuses(), Stuck: p.Stuck, Actor: p.Actor, Reason: p.Reason, CorrelationID: "c-7", StartedAt: &p.StartedAt, DeadlineAt: p.DeadlineAt}
	o.Phases[0].State, o.Phases[0].Attempt, o.Phases[0].StartedAt, o.Phases[0].EndedAt = lifecycle.PhaseCompleted, 1, &p.StartedAt, new(p.StartedAt.Add(time.Second))
	o.Phases[1].State, o.Phases[1].Attempt, o.Phases[1].StartedAt, o.Phases[1].Reason = lifecycle.PhaseParked, 2, new(p.StartedAt.Add(time.Second)), "drain_blocked"
	return wire.OperationView{OperationStatus: lifecycle.OperationStatus{Operation: o, Node: lifecycle.NodeRef{NodeID: nodeID, Host: "gpu-17", State: lifecycle.NodeDraining}},
		WebURL: "https://temporal.example.com/run", ProbableCause: &cause.Report{Candidates: []cause.Candidate{{Cause: "workloads", Summary: "two trainings run", Confidence: 0.8, Owner: "tenant", Next: "wait"}}}}
}

func since() string { return parked().Stuck.Since.UTC().Format(time.RFC3339Nano) }

// decision is the form of a decision about the park.
func decision(more ...string) url.Values {
	form := url.Values{"phase": {lifecycle.PhaseDrain}, "since": {since()}, "reason": {"TCK-99"}, "key": {"key-1"}}
	for i := 0; i+1 < len(more); i += 2 {
		form.Set(more[i], more[i+1])
	}
	return form
}

func TestOperationPage(t *testing.T) {
	s := newSite(t)
	s.backend.answer("GET "+operationPath, operation())
	w := s.login(trust.RoleOperator).get("/console" + operationPath)
	require.Equal(t, http.StatusOK, w.Code)
	golden(t, "operation", w)
}

func TestDecisionForm(t *testing.T) {
	s := newSite(t)
	s.backend.answer("GET "+operationPath, operation())
	q := "?" + url.Values{"phase": {lifecycle.PhaseDrain}, "since": {since()}}.Encode()
	s.login(trust.RoleAdmin)
	golden(t, "extend", s.get("/console"+operationPath+"/extend"+q))
	golden(t, "force", s.get("/console"+operationPath+"/force"+q))
	assert.Empty(t, s.backend.sent(http.MethodPost), "a GET changes nothing")
}

func TestDecision(t *testing.T) {
	s := newSite(t)
	s.backend.answer("GET "+operationPath, operation())
	s.backend.answer("POST "+operationPath+"/extend", operation())
	w := s.login(trust.RoleOperator).do(http.MethodPost, "/console"+operationPath+"/extend", decision())
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	assert.Equal(t, "/console"+operationPath, w.Header().Get("Location"))
	sent := s.backend.sent(http.MethodPost)
	require.Len(t, sent, 1)
	assert.Equal(t, "key-1", sent[0].key)
	assert.Equal(t, "operator-1", sent[0].by.Name)
	var body wire.ResolveOperation
	require.NoError(t, json.Unmarshal([]byte(sent[0].body), &body))
	assert.Equal(t, wire.ResolveOperation{Reason: "TCK-99", Phase: lifecycle.PhaseDrain, StuckSince: new(parked().Stuck.Since)}, body)
}

// A decision that kills workloads needs the host name, on the server.
func TestDecisionNeedsTheTypedName(t *testing.T) {
	s := newSite(t)
	s.backend.answer("GET "+operationPath, operation())
	s.backend.answer("POST "+operationPath+"/force", operation())
	s.login(trust.RoleAdmin)
	for _, typed := range []string{"", "gpu-18"} {
		w := s.do(http.MethodPost, "/console"+operationPath+"/force", decision("typed", typed))
		assert.Equal(t, http.StatusBadRequest, w.Code)
		assert.Contains(t, w.Body.String(), "Type gpu-17 to confirm.")
		assert.Contains(t, w.Body.String(), `value="TCK-99"`, "what was typed stays")
	}
	assert.Empty(t, s.backend.sent(http.MethodPost))
	w := s.do(http.MethodPost, "/console"+operationPath+"/force", decision("typed", "gpu-17"))
	assert.Equal(t, http.StatusSeeOther, w.Code)
}

func TestDecisionNeedsAReason(t *testing.T) {
	s := newSite(t)
	s.backend.answer("GET "+operationPath, operation())
	w := s.login(trust.RoleOperator).do(http.MethodPost, "/console"+operationPath+"/cancel", decision("reason", " "))
	assert.Equal(t, http.StatusBadRequest, w.Code)
	assert.Empty(t, s.backend.sent(http.MethodPost))
}

// A page that is outdated gets 409 and the state now, and the admin API decides about the park that
// the page showed.
func TestDecisionFromAStalePage(t *testing.T) {
	s := newSite(t)
	running := operation()
	running.Operation.Status, running.Operation.Stuck = lifecycle.OperationRunning, nil
	s.backend.answer("GET "+operationPath, running)
	s.backend.answer("POST "+operationPath+"/extend", schema.NewError(schema.KindDecisionOutdated, "the park has ended"))
	s.login(trust.RoleOperator)
	for _, w := range []interface{ Result() *http.Response }{
		s.get("/console" + operationPath + "/extend?" + url.Values{"phase": {lifecycle.PhaseDrain}, "since": {since()}}.Encode()),
		s.do(http.MethodPost, "/console"+operationPath+"/extend", decision()),
	} {
		assert.Equal(t, http.StatusConflict, w.Result().StatusCode) //nolint:bodyclose // a recorder
	}
	w := s.do(http.MethodPost, "/console"+operationPath+"/extend", decision())
	assert.Contains(t, w.Body.String(), "Nothing was done.")
	assert.Contains(t, w.Body.String(), "The drain of gpu-17 is running.")
	sent := s.backend.sent(http.MethodPost)
	assert.Contains(t, sent[0].body, since(), "the decision names the park of the page")
}

// A second click sends the same key, and its response is that of the first.
func TestDoubleClick(t *testing.T) {
	s := newSite(t)
	s.backend.answer("GET "+operationPath, operation())
	s.backend.answer("POST "+operationPath+"/extend", operation())
	s.login(trust.RoleOperator)
	require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console"+operationPath+"/extend", decision()).Code)
	running := operation()
	running.Operation.Status, running.Operation.Stuck = lifecycle.OperationRunning, nil
	s.backend.answer("GET "+operationPath, running)
	require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console"+operationPath+"/extend", decision()).Code)
	sent := s.backend.sent(http.MethodPost)
	require.Len(t, sent, 2)
	assert.Equal(t, sent[0].key, sent[1].key)
	assert.Equal(t, sent[0].body, sent[1].body)
}
