package console_test

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/console/consoletest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// usedSessions records of each session that is read whether a person uses it.
type usedSessions struct {
	consoletest.Sessions

	mu   sync.Mutex
	used []bool
}

// FindSession implements console.Sessions.
func (s *usedSessions) FindSession(ctx context.Context, id [sha256.Size]byte, used bool) (console.Session, error) {
	s.mu.Lock()
	s.used = append(s.used, used)
	s.mu.Unlock()
	return s.Sessions.FindSession(ctx, id, used)
}

// Only a person keeps a session from expiring: not the script, and a person also right after the script.
func TestUseOfASession(t *testing.T) {
	t.Parallel()
	sessions := &usedSessions{}
	s := newSite(t, func(c *console.Config) { c.Sessions = sessions }).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", wire.NodeList{})
	s.get("/console/nodes", "Gpuaas-Region", "1")
	s.get("/console/nodes", "Gpuaas-Region", "1")
	require.Equal(t, []bool{false}, sessions.used, "the second request uses what the first one read")
	s.get("/console/nodes")
	require.Equal(t, []bool{false, true}, sessions.used)
}

// The page of an internal error has no detail of it.
func TestInternalError(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", schema.NewError(schema.KindInternal, "reading pg_catalog"))
	w := s.get("/console/nodes")
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.NotContains(t, w.Body.String(), "pg_catalog")
}

// A bulk run whose session ends, or whose token is revoked, sends no further request.
func TestBulkEndsWithTheSession(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(20)
	waiting, release := s.backend.holdDrain()
	form := confirmed(s, "/console/bulk?do=drain&state=active", "19")
	form.Set("parallel", "1")
	started := s.do(http.MethodPost, "/console/bulk", form)
	harness.Eventually(t, "the first request waits", waiting.Load)
	s.backend.drop(tokenOf(trust.RoleOperator))
	close(release)
	s.login(trust.RoleViewer)
	require.Contains(t, endedRun(s, started), "the session of operator-1 has ended")
	require.Len(t, s.backend.sent(http.MethodPost), 1)
}

// A plan of decisions is for the parks that it listed: after another park of the same operation, it is
// another plan.
func TestBulkPlanOfAnotherPark(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	op := parked().OperationSummary
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{op}})
	form := confirmed(s, "/console/bulk?do=decide+force&park=drain_blocked&harm=yes", "1")
	again := *op.Stuck
	again.Options, again.Since = slices.Clone(again.Options), again.Since.Add(time.Minute)
	op.Stuck = &again
	s.backend.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{op}})
	w := s.do(http.MethodPost, "/console/bulk", form)
	require.Equal(t, http.StatusConflict, w.Code)
	require.Empty(t, s.backend.sent(http.MethodPost))
}

// A plan whose effect on a node changed after the operator saw it is another plan. The number of the
// workloads that end is no part of it.
func TestBulkPlanOfAnotherEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	form := confirmed(s, "/console/bulk?do=drain&host=gpu-*", "2")
	node := wire.NodeView{ID: idOf(0), Host: "gpu-0", State: lifecycle.NodeActive, OnboardingMode: "manual"}
	other := node
	other.ID, other.Host = idOf(1), "gpu-1"
	other.Workloads = []task.Workload{{Kind: "docker", Name: "train-1"}}
	node.Workloads = other.Workloads
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{node, other}})
	w := s.do(http.MethodPost, "/console/bulk", form)
	require.Equal(t, http.StatusConflict, w.Code, "the drain now stops a workload on gpu-0")
	require.Empty(t, s.backend.sent(http.MethodPost))

	form = confirmed(s, "/console/bulk?do=drain&host=gpu-*", "2")
	node.Workloads = append(node.Workloads, task.Workload{Kind: "docker", Name: "train-2"})
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{node, other}})
	require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console/bulk", form).Code)
}

// The form of an action asks for the host name if the action may end workloads or cannot be undone.
func TestFormsThatAskForTheHost(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	s.backend.node(busy())
	var asks []lifecycle.Action
	for _, p := range lifecycle.Operations() {
		w := s.get("/console" + nodePath + "/" + string(p.Action))
		if strings.Contains(w.Body.String(), `name="typed"`) {
			asks = append(asks, p.Action)
		}
	}
	require.ElementsMatch(t, []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionRetire, lifecycle.ActionRecover, lifecycle.ActionTerminate, lifecycle.ActionRemove}, asks)
}
