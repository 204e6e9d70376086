package console_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// holdDrain makes the drains of the first node wait until release is closed. waiting is set when one does.
func (b *backend) holdDrain() (waiting *atomic.Bool, release chan struct{}) {
	waiting, release = new(atomic.Bool), make(chan struct{})
	b.delay = func(path string) {
		if path == "/nodes/"+idOf(0)+"/drain" {
			waiting.Store(true)
			<-release
		}
	}
	return waiting, release
}

// The plan says of each node what the preview of one action says: what a drain cannot stop leaves the node
// out, a process on a GPU is not stopped, and a drain that is in progress is not started again.
func TestBulkPlanIsThePreview(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	workloads := [][]task.Workload{
		{{Kind: "docker", Name: "train-1"}, {Kind: task.KindGPUProcess, Name: "4711"}},
		{{Kind: task.KindUnknown, Name: "docker does not respond"}},
		{{Kind: task.KindLastServer, Name: "rke2"}},
		{{Kind: task.KindGPUProcess, Name: "4712"}},
		nil,
	}
	var nodes []wire.NodeView
	for i, w := range workloads {
		nodes = append(nodes, wire.NodeView{ID: idOf(i), Host: fmt.Sprint("gpu-", i), State: lifecycle.NodeActive, OnboardingMode: "manual", Workloads: w})
	}
	nodes[4].Operation = &wire.OperationSummary{Action: lifecycle.ActionDrain, Status: lifecycle.OperationRunning, Actor: "bob"}
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: nodes})
	s.backend.answer("GET /providers", machine.Providers{})

	page := s.get("/console/bulk?do=drain&state=active").Body.String()
	require.Contains(t, page, "2 of 5 nodes")
	require.Contains(t, page, "drain, active, stops 1 workload")
	require.NotContains(t, page, "2 workloads")
	require.Regexp(t, `(?s)has a workload that a drain cannot stop.*gpu-1, gpu-2`, page)
	require.Contains(t, page, "drain is in progress")
	require.Contains(t, s.get("/console/bulk?do=cordon&state=active").Body.String(), "4 of 5 nodes", "a cordon stops nothing")
}

// A release of nodes that still have a fault says so.
func TestBulkReleaseOfFaultyNodes(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	faulty := wire.NodeView{ID: idOf(1), Host: "gpu-1", State: lifecycle.NodeQuarantined, OnboardingMode: "manual",
		Conditions: []signal.Condition{{Condition: health.Condition{Checker: "xid", Status: health.Unhealthy, Reason: "Xid79", Repair: health.RepairReboot}}}}
	repaired := wire.NodeView{ID: idOf(2), Host: "gpu-2", State: lifecycle.NodeQuarantined, OnboardingMode: "manual"}
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{faulty, repaired}})
	s.backend.answer("GET /providers", machine.Providers{})
	page := s.get("/console/bulk?do=release&state=quarantined").Body.String()
	require.Contains(t, page, "release, quarantined, still has a fault")
	require.Contains(t, page, "2 of 2 nodes")
	sent := s.backend.sent(http.MethodGet)
	require.Contains(t, sent[len(sent)-1].target, "conditions")
}

// A run that is open keeps its page, however many runs are started after it.
func TestBulkKeepsOpenRuns(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	_, release := s.backend.holdDrain()
	const address = "/console/bulk?do=drain&state=active"
	open := s.do(http.MethodPost, "/console/bulk", confirmed(s, address, "2"))
	require.Equal(t, http.StatusSeeOther, open.Code)
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{{ID: idOf(1), Host: "gpu-1", State: lifecycle.NodeActive, OnboardingMode: "manual"}}})
	for range 25 {
		endedRun(s, s.do(http.MethodPost, "/console/bulk", confirmed(s, address, "1")))
	}
	require.Equal(t, http.StatusOK, s.get(open.Header().Get("Location")).Code)
	close(release)
	require.Contains(t, endedRun(s, open), "accepted</span> <strong>2</strong>")
}

// A process works on a limited number of runs at a time.
func TestBulkRunsAreLimited(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.fleetOf(3)
	_, release := s.backend.holdDrain()
	const address = "/console/bulk?do=drain&state=active"
	for range 4 {
		require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console/bulk", confirmed(s, address, "2")).Code)
	}
	require.Equal(t, http.StatusTooManyRequests, s.do(http.MethodPost, "/console/bulk", confirmed(s, address, "2")).Code)
	close(release)
}
