package console_test

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/console/consoletest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// secondPage makes the second response to a path the page after the first.
func (b *backend) secondPage(path string, page any) {
	asked := 0
	b.delay = func(p string) {
		if p != path {
			return
		}
		if asked++; asked%2 == 0 {
			b.answer("GET "+path, page)
		}
	}
}

// A plan has the nodes and operations of all pages of their list.
func TestBulkPlanOfAllPages(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	s.backend.fleetOf(3)
	node := wire.NodeView{ID: idOf(0), Host: "gpu-0", State: lifecycle.NodeActive, OnboardingMode: "manual"}
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{node}, NextPageToken: "two"})
	s.backend.secondPage("/nodes", wire.NodeList{Nodes: []wire.NodeView{node}})
	require.Contains(t, s.get("/console/bulk?do=drain&state=active").Body.String(), "2 of 2 nodes")

	op := parked().OperationSummary
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{op}, NextPageToken: "two"})
	s.backend.secondPage("/operations", wire.OperationList{Operations: []wire.OperationSummary{op}})
	require.Contains(t, s.get("/console/bulk?do=decide+extend&park=drain_blocked").Body.String(), "2 of 2 parked operations")
}

// A confirmation is for the verb of its plan, and a plan without a target cannot be confirmed.
func TestBulkConfirmationOfAnotherPlan(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	form := confirmed(s, "/console/bulk?do=drain&state=active", "2")
	form.Set("do", "cordon")
	require.Equal(t, http.StatusConflict, s.do(http.MethodPost, "/console/bulk", form).Code)
	s.backend.answer("GET /nodes", wire.NodeList{})
	page := s.get("/console/bulk?do=drain&state=active").Body.String()
	require.Contains(t, page, "Nothing matches.")
	require.NotContains(t, page, `name="confirm"`)
	form.Set("do", "drain")
	form.Set("plan", schema.SHA256Hex([]byte("drain")))
	form.Set("confirm", "0")
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/console/bulk", form).Code)
	require.Empty(t, s.backend.sent(http.MethodPost))
}

// A decision about a park that is over is outdated, and one that is applied later is accepted: neither is a
// failure.
func TestBulkOutcomes(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	p := parked().OperationSummary
	other, third := p, p
	other.OperationID, third.OperationID = idOf(7), idOf(8)
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{p, other, third}})
	s.backend.answer("POST /operations/"+operationID+"/extend", schema.NewError(schema.KindDecisionOutdated, "the park has ended"))
	s.backend.answer("POST /operations/"+idOf(7)+"/extend",
		schema.NewError(schema.KindServiceUnavailable, "it is applied later").WithReason(lifecycle.ReasonDecisionAccepted))
	s.backend.answer("POST /operations/"+idOf(8)+"/extend",
		schema.NewError(schema.KindServiceUnavailable, "it is stored").WithReason(lifecycle.ReasonCancelStored))
	page := oneByOne(s, "/console/bulk?do=decide+extend&park=drain_blocked", "3")
	require.Contains(t, page, "outdated</span> <strong>1</strong>")
	require.Contains(t, page, "accepted</span> <strong>2</strong>")
	require.NotContains(t, page, "Failed, outcome unknown or not sent")
	require.NotContains(t, page, "Stopped")
}

// An operation that Temporal accepted while no worker responded is not a failure: it starts later. The run sends
// no further request. A decision that no worker took is not stored, so it failed.
func TestBulkWithoutWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	noWorker := schema.NewError(schema.KindServiceUnavailable, "no worker responded").WithReason(lifecycle.ReasonNoWorker)
	s.backend.answer("POST /nodes/"+idOf(0)+"/drain", noWorker)
	s.backend.answer("POST /nodes/"+idOf(1)+"/drain", noWorker)
	page := oneByOne(s, "/console/bulk?do=drain&state=active", "2")
	require.Contains(t, page, "accepted, waiting</span> <strong>1</strong>")
	require.Contains(t, page, "<p>Waiting: gpu-0</p>")
	require.Contains(t, page, "not sent</span> <strong>1</strong>")
	require.Contains(t, page, "no worker responded")
	require.NotContains(t, page, "failed</span>")

	p := parked().OperationSummary
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{p}})
	s.backend.answer("POST /operations/"+operationID+"/extend", noWorker)
	page = oneByOne(s, "/console/bulk?do=decide+extend&park=drain_blocked", "1")
	require.Contains(t, page, "failed</span> <strong>1</strong>")
}

// A request to which a service did not respond may have been accepted, so it did not fail. The page says
// how to look.
func TestBulkOutcomeNotKnown(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	s.backend.answer("POST /nodes/"+idOf(0)+"/drain", schema.NewError(schema.KindServiceUnavailable,
		"Temporal does not respond; the operation may have been accepted").WithReason("temporal_unreachable"))
	page := oneByOne(s, "/console/bulk?do=drain&state=active", "2")
	require.Contains(t, page, "outcome unknown</span> <strong>1</strong>")
	require.Contains(t, page, "the operation may have been accepted")
	require.Contains(t, page, "gpuaas op list --node gpu-0")
	require.NotContains(t, page, "failed</span>")
	require.Contains(t, page, "not sent</span> <strong>1</strong>")

	p := parked().OperationSummary
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{p}})
	s.backend.answer("POST /operations/"+operationID+"/extend", schema.NewError(schema.KindServiceUnavailable, "the admin API does not respond"))
	page = oneByOne(s, "/console/bulk?do=decide+extend&park=drain_blocked", "1")
	require.Contains(t, page, "outcome unknown</span> <strong>1</strong>")
	require.Contains(t, page, "gpuaas op show "+operationID)
}

// An operation that was accepted before a service failed is accepted, and the run stops.
func TestBulkResponseLost(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	s.backend.answer("POST /nodes/"+idOf(0)+"/drain", schema.NewError(schema.KindServiceUnavailable,
		"the database does not respond; operation x was accepted").WithReason(lifecycle.ReasonResponseLost))
	page := oneByOne(s, "/console/bulk?do=drain&state=active", "2")
	require.Contains(t, page, "accepted</span> <strong>1</strong>")
	require.NotContains(t, page, "accepted, waiting</span>")
	require.Contains(t, page, "not sent</span> <strong>1</strong>")
}

// A request that a service rejected has failed, and the page has the next step of the error.
func TestBulkRejectedByAService(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	for reason, next := range map[string]string{"namespace_missing": "gpuaas admin setup", "temporal_unauthenticated": "check TEMPORAL_API_KEY",
		"temporal_forbidden": "set a credential", "temporal_throttled": "retry later", "temporal_tls": "check the TEMPORAL_TLS_ variables",
		"temporal_unimplemented": "check TEMPORAL_ADDRESS", "database_login": "correct the database URL"} {
		s.backend.answer("POST /nodes/"+idOf(0)+"/drain",
			schema.NewError(schema.KindServiceUnavailable, "the service rejects the call").WithReason(reason).WithNext(next))
		page := oneByOne(s, "/console/bulk?do=drain&state=active", "2")
		require.Contains(t, page, "failed</span> <strong>1</strong>", reason)
		require.Contains(t, page, "<code>"+next+"</code>", reason)
		require.NotContains(t, page, "gpuaas op list", reason)
		require.Contains(t, page, "not sent</span> <strong>1</strong>", "the run stops: %s", reason)
	}

	p := parked().OperationSummary
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{p}})
	s.backend.answer("POST /operations/"+operationID+"/extend", schema.NewError(schema.KindServiceUnavailable, "the workflow tasks fail").
		WithReason("workflow_tasks_fail").WithNext("correct what the log names"))
	page := oneByOne(s, "/console/bulk?do=decide+extend&park=drain_blocked", "1")
	require.Contains(t, page, "failed</span> <strong>1</strong>")
	require.Contains(t, page, "<code>correct what the log names</code>")
}

// The keys of a run name it, so that a second run of the same plan is no repeat of the first.
func TestBulkRunsHaveTheirOwnKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	for range 2 {
		endedRun(s, s.do(http.MethodPost, "/console/bulk", confirmed(s, "/console/bulk?do=drain&state=active", "2")))
	}
	keys := map[string]bool{}
	for _, r := range s.backend.sent(http.MethodPost) {
		keys[r.key] = true
	}
	require.Len(t, keys, 4)
}

// A process that stops sends no further request and waits for those that it sent. Nothing starts after it.
func TestBulkRunsEndWithTheProcess(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(20)
	waiting, release := s.backend.holdDrain()
	form := confirmed(s, "/console/bulk?do=drain&state=active", "19")
	form.Set("parallel", "1")
	started := s.do(http.MethodPost, "/console/bulk", form)
	later := confirmed(s, "/console/bulk?do=drain&state=active", "19")
	harness.Eventually(t, "the first request waits", waiting.Load)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.stop()
	}()
	run := started.Header().Get("Location")
	harness.Eventually(t, "the run stops", func() bool { return strings.Contains(s.get(run).Body.String(), "gpuaas-api stopped") })
	select {
	case <-stopped:
		require.Fail(t, "the process does not wait for its request")
	default:
	}
	close(release)
	<-stopped
	require.Len(t, s.backend.sent(http.MethodPost), 1)
	require.Equal(t, http.StatusServiceUnavailable, s.do(http.MethodPost, "/console/bulk", later).Code)
}

// lostSessions are sessions that cannot be read while the database is lost.
type lostSessions struct {
	consoletest.Sessions

	lost  atomic.Bool
	asked atomic.Int32
}

// FindSession implements console.Sessions.
func (s *lostSessions) FindSession(ctx context.Context, id [sha256.Size]byte, used bool) (console.Session, error) {
	if s.lost.Load() {
		s.asked.Add(1)
		return console.Session{}, schema.NewError(schema.KindServiceUnavailable, "the database at db-1 does not respond")
	}
	return s.Sessions.FindSession(ctx, id, used)
}

// A run that loses the database says so, and names the nodes for which it sent no request. It does not
// say that the session has ended.
func TestBulkRunWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	c, sessions := &clock{}, &lostSessions{}
	s := newSite(t, func(cfg *console.Config) { cfg.Now, cfg.Sessions = c.now, sessions }).login(trust.RoleOperator)
	s.backend.fleetOf(80)
	waiting, release := s.backend.holdDrain()
	form := confirmed(s, "/console/bulk?do=drain&state=active", "79")
	form.Set("parallel", "1")
	started := s.do(http.MethodPost, "/console/bulk", form)
	harness.Eventually(t, "the first request waits", waiting.Load)
	require.NotContains(t, s.get(started.Header().Get("Location")).Body.String(), "not sent: ", "more requests may be sent")
	sessions.lost.Store(true)
	c.pass(time.Minute)
	close(release)
	harness.Eventually(t, "the run reads the session", func() bool { return sessions.asked.Load() > 0 })
	sessions.lost.Store(false)
	page := endedRun(s, started)
	require.Contains(t, page, "a service is unavailable, at gpu-1: the database at db-1 does not respond")
	require.NotContains(t, page, "session")
	require.Contains(t, page, "accepted</span> <strong>1</strong>")
	require.Contains(t, page, "<code>not sent</code>: 78")
	require.Regexp(t, `>gpu-1</a></td><td>not sent: a service is unavailable, at gpu-1: the database at db-1 does not respond</td>`, page)
	require.Contains(t, page, "and 28 more")
	require.Len(t, s.backend.sent(http.MethodPost), 1)
}
