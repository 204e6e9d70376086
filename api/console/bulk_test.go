package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// idOf is the ID of the i-th node or operation.
func idOf(i int) string { return fmt.Sprintf("0190b6c2-1111-7aaa-8bbb-%012d", i) }

// fleetOf answers with n active nodes, of which the second runs a workload and the last is drained.
func (b *backend) fleetOf(n int) {
	var nodes []wire.NodeView
	for i := range n {
		nodes = append(nodes, wire.NodeView{ID: idOf(i), Host: fmt.Sprint("gpu-", i), State: lifecycle.NodeActive, OnboardingMode: "manual"})
		b.answer("POST /nodes/"+idOf(i)+"/drain", wire.LifecycleResponse{})
	}
	nodes[1].Workloads = []task.Workload{{Kind: "docker", Name: "train-1"}}
	nodes[n-1].State = lifecycle.NodeDrained
	b.answer("GET /nodes", wire.NodeList{Nodes: nodes})
	b.answer("GET /providers", machine.Providers{})
}

// hidden returns the hidden fields of the last form of a page.
func hidden(page string) url.Values {
	form := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`).FindAllStringSubmatch(page, -1) {
		form.Set(m[1], m[2])
	}
	return form
}

// confirmed is the filled in form of the plan at an address.
func confirmed(s *site, address, number string) url.Values {
	s.tb.Helper()
	w := s.get(address)
	require.Equal(s.tb, http.StatusOK, w.Code, w.Body.String())
	form := hidden(w.Body.String())
	form.Set("reason", "rack r7 loses power")
	form.Set("confirm", number)
	return form
}

// endedRun waits until the run ended and returns its page.
func endedRun(s *site, w interface{ Result() *http.Response }) string {
	s.tb.Helper()
	res := w.Result()
	require.Equal(s.tb, http.StatusSeeOther, res.StatusCode)
	page := ""
	harness.Eventually(s.tb, "the run ends", func() bool {
		page = s.get(res.Header.Get("Location")).Body.String()
		return !strings.Contains(page, "not yet")
	})
	return page
}

// oneByOne starts the run of a plan, with one request at a time, waits until it ended and returns its page.
func oneByOne(s *site, address, number string) string {
	s.tb.Helper()
	form := confirmed(s, address, number)
	form.Set("parallel", "1")
	return endedRun(s, s.do(http.MethodPost, "/console/bulk", form))
}

// A bulk action is planned first. It sends one request for each node of the plan, as the subject,
// with the reason and a key of its own; a form that is sent twice starts one run.
func TestBulk(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(20)
	const address = "/console/bulk?do=drain&state=active&sku=&park=x"
	w := s.get(address)
	golden(t, "bulk", w)
	require.Empty(t, s.backend.sent(http.MethodPost))
	form := confirmed(s, address, "19")
	first := s.do(http.MethodPost, "/console/bulk", form)
	again := s.do(http.MethodPost, "/console/bulk", form)
	require.Equal(t, first.Header().Get("Location"), again.Header().Get("Location"))
	require.Contains(t, endedRun(s, first), "accepted</span> <strong>19</strong>")
	sent, keys := s.backend.sent(http.MethodPost), map[string]bool{}
	require.Len(t, sent, 19)
	for _, r := range sent {
		keys[r.key] = true
		require.Equal(t, trust.RoleOperator, r.by.Role)
		require.JSONEq(t, `{"reason":"rack r7 loses power","options":{}}`, r.body)
	}
	require.Len(t, keys, 19)
}

// Nothing starts without a filter, a reason, the typed number, the role, or by a plan that changed.
func TestBulkIsConfirmed(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(20)
	const address = "/console/bulk?do=drain&state=active"
	for _, c := range [][2]string{{"reason", ""}, {"reason", "two\nlines"}, {"confirm", "18"}, {"parallel", "1000"}, {"do", "remove"}, {"state", ""}} {
		form := confirmed(s, address, "19")
		form.Set(c[0], c[1])
		require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/console/bulk", form).Code, c)
	}
	form := confirmed(s, address, "19")
	s.backend.fleetOf(21)
	w := s.do(http.MethodPost, "/console/bulk", form)
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "Nothing was started")
	form.Set("do", "decide force")
	form.Set("park", "drain_blocked")
	require.Equal(t, http.StatusForbidden, s.do(http.MethodPost, "/console/bulk", form).Code)
	require.Empty(t, s.backend.sent(http.MethodPost))
}

// Failures are grouped by their reason. After a service is unavailable, no further request is sent.
func TestBulkFailures(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(40)
	for i := range 3 {
		s.backend.answer("POST /nodes/"+idOf(i)+"/drain", schema.NewError(schema.KindOperationInProgress, "retire is in progress").WithReason("in_progress"))
	}
	form := confirmed(s, "/console/bulk?do=drain&state=active", "39")
	page := endedRun(s, s.do(http.MethodPost, "/console/bulk", form))
	require.Contains(t, page, "<code>in_progress</code>: 3")
	require.Contains(t, page, "gpu-0, gpu-1, gpu-2")

	sent := len(s.backend.sent(http.MethodPost))
	s.backend.answer("POST /nodes/"+idOf(0)+"/drain", schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond"))
	page = oneByOne(s, "/console/bulk?do=drain&state=active", "39")
	require.Contains(t, page, "a service is unavailable, at gpu-0: Temporal does not respond")
	require.Len(t, s.backend.sent(http.MethodPost), sent+1)
}

// A decision about parked operations leaves out those without it and, unless it is allowed, those
// where it may do harm. Each is valid for the park of the plan only.
func TestBulkDecisions(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	p := parked().OperationSummary
	other := p
	other.OperationID, other.Host = idOf(7), "gpu-18"
	other.Stuck = new(*p.Stuck)
	other.Stuck.Options = nil
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{p, other}})
	s.backend.answer("POST /operations/"+operationID+"/force", wire.OperationView{})
	w := s.get("/console/bulk?do=decide+force&park=drain_blocked&state=active")
	require.Contains(t, w.Body.String(), "0 of 2 parked operations")
	sent := s.backend.sent(http.MethodGet)
	require.Equal(t, "/operations?limit=1000&reason=drain_blocked&status=parked", sent[len(sent)-1].target)

	form := confirmed(s, "/console/bulk?do=decide+force&park=drain_blocked&harm=yes", "1")
	endedRun(s, s.do(http.MethodPost, "/console/bulk", form))
	posts := s.backend.sent(http.MethodPost)
	require.Len(t, posts, 1)
	require.JSONEq(t, `{"reason":"rack r7 loses power","phase":"drain","stuck_since":"2026-03-01T10:30:00Z"}`, posts[0].body)
}

// Only who may start a plan sees its form.
func TestBulkFormNeedsTheRoleOfItsVerb(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backend.fleetOf(3)
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{parked().OperationSummary}})
	for address, need := range map[string]trust.Role{"do=drain&state=active": trust.RoleOperator, "do=decide+extend&action=drain": trust.RoleOperator,
		"do=decide+force&action=drain&harm=yes": trust.RoleAdmin} {
		for _, role := range []trust.Role{trust.RoleViewer, trust.RoleOperator, trust.RoleAdmin} {
			page := s.login(role).get("/console/bulk?" + address).Body.String()
			if role.Allows(need) {
				require.Contains(t, page, ">Start</button>", "%s as %s", address, role)
				continue
			}
			require.NotContains(t, page, ">Start</button>", "%s as %s", address, role)
			require.Contains(t, page, "you need the role "+string(need))
		}
	}
}
