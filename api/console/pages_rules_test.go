package console_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The form of a decision is for the park of the page: not for a later park of the same phase, and not for one
// of another phase.
func TestFormOfAnotherPark(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.answer("GET "+operationPath, operation())
	for _, q := range []url.Values{
		{"phase": {lifecycle.PhaseDrain}, "since": {parked().Stuck.Since.Add(time.Second).Format(time.RFC3339Nano)}},
		{"phase": {"cordon"}, "since": {since()}}, {},
	} {
		w := s.get("/console" + operationPath + "/extend?" + q.Encode())
		require.Equal(t, http.StatusConflict, w.Code, q)
		require.Contains(t, w.Body.String(), "is parked in phase drain")
	}
	require.Equal(t, http.StatusOK, s.get("/console"+operationPath+"/extend?"+url.Values{"phase": {lifecycle.PhaseDrain}, "since": {since()}}.Encode()).Code)
	for _, name := range []string{"phase", "since", "key"} {
		require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/console"+operationPath+"/extend", decision(name, "")).Code, name)
	}
	require.Empty(t, s.backend.sent(http.MethodPost))
}

// The page of a running drain says what it waits for, and whether it is late. A parked operation is not
// late, and an ended one has no budget.
func TestOperationPageOfADrainThatRuns(t *testing.T) {
	t.Parallel()
	page := func(change func(*lifecycle.Operation)) string {
		s := newSite(t).login(trust.RoleViewer) // without data that was read before
		s.backend.answer("GET "+nodePath, busy())
		v := operation()
		change(&v.Operation)
		s.backend.answer("GET "+operationPath, v)
		w := s.get("/console" + operationPath)
		require.Equal(t, http.StatusOK, w.Code)
		return w.Body.String()
	}
	running := func(o *lifecycle.Operation) {
		o.Status, o.Stuck, o.DeadlineAt = lifecycle.OperationRunning, nil, new(readAt().Add(-time.Minute))
		for i := range o.Phases {
			if o.Phases[i].Name == lifecycle.PhaseDrain {
				o.Phases[i].State = lifecycle.PhaseRunning
			}
		}
	}
	text := page(running)
	require.Contains(t, text, "<li>docker train-1</li>")
	require.Contains(t, text, "! over")
	require.NotContains(t, page(func(o *lifecycle.Operation) { running(o); o.DeadlineAt = new(readAt().Add(time.Minute)) }), "! over")
	text = page(func(*lifecycle.Operation) {})
	require.Contains(t, text, "budget ends")
	require.NotContains(t, text, "! over")
	require.NotContains(t, page(func(o *lifecycle.Operation) { running(o); o.Status = lifecycle.OperationCompleted }), "budget ends")
}

// The options of an action are sent as they were chosen, within their bounds, and only where they apply.
func TestOptionsOfAnAction(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	s.backend.node(busy())
	send := func(action string, more ...string) *http.Response {
		s.backend.answer("POST "+nodePath+"/"+action, wire.LifecycleResponse{Operation: lifecycle.Operation{OperationID: operationID}})
		form := url.Values{"reason": {"r"}, "key": {"k"}, "typed": {"gpu-17"}}
		for i := 0; i+1 < len(more); i += 2 {
			form.Set(more[i], more[i+1])
		}
		return s.do(http.MethodPost, "/console"+nodePath+"/"+action, form).Result()
	}
	for _, c := range []struct {
		action string
		more   []string
		body   string // empty: it is refused
	}{
		{"drain", []string{"cordon_only", "true", "minutes", "10"}, `{"reason":"r","options":{"cordon_only":true,"drain_timeout_seconds":600}}`},
		{"retire", []string{"minutes", "10"}, `{"reason":"r","options":{}}`},
		{"retire", []string{"minutes", "10", "drain", "true"}, `{"reason":"r","options":{"drain":true,"drain_timeout_seconds":600}}`},
		{"drain", []string{"minutes", "100000"}, ""},
		{"drain", []string{"minutes", "ten"}, ""},
		{"drain", []string{"key", ""}, ""},
		{"drain", []string{"typed", "gpu-1"}, ""},
	} {
		before := len(s.backend.sent(http.MethodPost))
		res := send(c.action, c.more...) //nolint:bodyclose // a recorder
		sent := s.backend.sent(http.MethodPost)[before:]
		if c.body == "" {
			require.Equal(t, http.StatusBadRequest, res.StatusCode, c.more)
			require.Empty(t, sent)
			continue
		}
		require.Equal(t, http.StatusSeeOther, res.StatusCode, c.more)
		require.Len(t, sent, 1)
		require.JSONEq(t, c.body, sent[0].body)
	}
}

// A form says whether what it does can be undone, and the page of a node has no button without the role.
func TestHarmOfActions(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	n := busy()
	n.State, n.Workloads = lifecycle.NodeRegistered, nil
	s.backend.node(n)
	page := s.get("/console" + nodePath + "/remove").Body.String()
	require.Contains(t, page, "This cannot be undone.")
	require.Contains(t, page, `name="typed"`)

	n.State = lifecycle.NodeActive
	s.backend.answer("GET "+nodePath, n)
	page = s.get("/console" + nodePath + "/drain").Body.String()
	require.Contains(t, page, "Workloads on the node may be killed.")
	require.Contains(t, s.get("/console"+nodePath).Body.String(), `href="/console`+nodePath+`/drain"`)
	page = s.login(trust.RoleViewer).get("/console" + nodePath).Body.String()
	require.NotContains(t, page, `href="/console`+nodePath+`/drain"`)
	require.Contains(t, page, "needs the role operator")
	require.Contains(t, s.get("/console"+nodePath+"/drain").Body.String(), "it needs the role operator")
}

// An option that is no decision has its command and no link.
func TestOptionOfTheCommandLine(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	v := operation()
	v.Operation.Stuck.Options = []lifecycle.Option{{Decision: "wait", Does: "wait for the tenant", Command: "gpuaas node show NODE", Harm: lifecycle.HarmNone}}
	s.backend.answer("GET "+operationPath, v)
	page := s.get("/console" + operationPath).Body.String()
	require.Contains(t, page, "gpuaas node show gpu-17")
	require.NotContains(t, page, operationPath+"/wait")
}

// The overview has the longest operation first, the probable cause of a park, since when an operation is
// overdue, and the phases that were skipped.
func TestRowsOfTheOverview(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.fleet()
	park, overdue := parked(), parked()
	park.ProbableCause = &cause.Candidate{Summary: "two trainings run"}
	overdue.Stuck, overdue.Status, overdue.DeadlineAt = nil, lifecycle.OperationRunning, new(readAt().Add(-7*time.Minute))
	s.backend.answer("GET /stuck", wire.StuckList{Stuck: []wire.StuckOperation{park, overdue}})
	short, long := parked().OperationSummary, parked().OperationSummary
	short.Host, short.StartedAt = "gpu-short", readAt().Add(-time.Minute)
	long.Host, long.StartedAt, long.Action = "gpu-long", readAt().Add(-time.Hour), lifecycle.ActionRecover
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{short, long}})
	s.backend.answer("GET /audit", wire.AuditPage{Events: []audit.Row{
		{Host: "gpu-skipped", Event: audit.Event{Action: audit.Decision, Detail: map[string]string{"decision": "skip"}}},
		{Host: "gpu-retried", Event: audit.Event{Action: audit.Decision, Detail: map[string]string{"decision": "retry"}}}}})
	page := s.get("/console/").Body.String()
	require.Regexp(t, `(?s)gpu-long.*gpu-short`, page)
	require.Contains(t, page, "Likely cause: two trainings run")
	require.Contains(t, page, `title="2026-03-01 11:53:00Z"`, "it is overdue since its deadline")
	require.Contains(t, page, "gpu-skipped")
	require.NotContains(t, page, "gpu-retried")
}

// The audit trail marks a skipped phase, and names a node that acted by its host.
func TestAuditOfASkip(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.answer("GET /audit", wire.AuditPage{Events: []audit.Row{{Host: "gpu-17", Event: audit.Event{Stream: nodeID, At: readAt(), Actor: "node:" + nodeID,
		Action: audit.Decision, Detail: map[string]string{"decision": "skip"}}}}})
	page := s.get("/console/audit").Body.String()
	require.Contains(t, page, `<tr class="forced">`)
	require.Contains(t, page, "<td>node:gpu-17</td>")
}

// A decision about a rotation is for the rotation of the page, and the page has only decisions that are
// possible.
func TestDecisionsOfARotation(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	buttons := func(change func(*rotation.View)) string {
		v := rotating()
		change(&v)
		s.backend.answer("GET /trust/rotation", v)
		return s.get("/console/trust").Body.String()
	}
	const path = `href="/console/trust/rotation/`
	page := buttons(func(*rotation.View) {})
	require.Contains(t, page, path+"pause")
	require.Contains(t, page, path+"approve")
	page = buttons(func(v *rotation.View) { v.Paused, v.Approved = true, true })
	require.Contains(t, page, path+"resume")
	require.NotContains(t, page, path+"pause")
	require.NotContains(t, page, path+"approve")
	require.NotContains(t, buttons(func(v *rotation.View) { v.EndedAt = new(readAt()) }), path)

	buttons(func(*rotation.View) {})
	s.backend.answer("POST /trust/rotation/approve", rotating())
	form := url.Values{"rotation": {nodeID}, "phase": {"grace"}, "reason": {"r"}}
	require.Equal(t, http.StatusConflict, s.do(http.MethodPost, "/console/trust/rotation/approve", form).Code)
	require.Empty(t, s.backend.sent(http.MethodPost))
}

// The page about agents counts the nodes of all pages of the list.
func TestAgentsOfAllPages(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{busy()}, NextPageToken: "two"})
	s.backend.secondPage("/nodes", wire.NodeList{Nodes: []wire.NodeView{busy(), busy()}})
	require.Contains(t, s.get("/console/agents").Body.String(), "3 nodes")
}

// After a change in the console, no page has data from before it.
func TestReadsAfterAChange(t *testing.T) {
	t.Parallel()
	s, c := siteWithClock(t)
	s.backend.answer("GET /tasks/"+taskID, wire.TaskView{TaskID: taskID, Status: task.Lost, OperationID: operationID})
	s.backend.answer("POST /tasks/"+taskID+"/resume", wire.TaskView{})
	s.get("/console/")
	c.pass(time.Second)
	s.get("/console/")
	require.Equal(t, 1, s.backend.reads("/stuck"), "the data is recent")
	w := s.do(http.MethodPost, "/console/tasks/"+taskID+"/resume", url.Values{"key": {"k"}, "reason": {"r"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	s.get("/console/")
	require.Equal(t, 2, s.backend.reads("/stuck"))
}
