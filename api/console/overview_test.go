package console_test

import (
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stable replaces what differs between runs and versions.
func stable(page string) string {
	page = regexp.MustCompile(`data-rev="[^"]*"`).ReplaceAllString(page, `data-rev="REVISION"`)
	page = regexp.MustCompile(`/static/[0-9a-f]+/`).ReplaceAllString(page, `/static/VERSION/`)
	return regexp.MustCompile(`name="key" value="[^"]*"`).ReplaceAllString(page, `name="key" value="KEY"`)
}

const (
	nodeID      = "0190b6c2-1111-7aaa-8bbb-0123456789ab"
	operationID = "0190b6c2-2222-7aaa-8bbb-0123456789ab"
)

// parked is a drain that workloads block.
func parked() wire.StuckOperation {
	since := readAt().Add(-90 * time.Minute)
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	spec := plan.Phases[1]
	s := &lifecycle.Stuck{Phase: lifecycle.PhaseDrain, WaitingOn: lifecycle.AttentionOperator, Reason: lifecycle.ReasonDrainBlocked,
		Message: "2 workloads still run: docker train-1, docker train-2", Since: since, Cause: "the workloads take longer than the drain's time limit"}
	for _, p := range plan.Phases {
		if p.Name == lifecycle.PhaseDrain {
			spec = p
		}
	}
	s.Options = plan.OptionsIn(spec, "gpu-17", operationID, since)
	return wire.StuckOperation{State: lifecycle.NodeDraining, WebURL: "https://temporal.example.com/run",
		OperationSummary: wire.OperationSummary{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain,
			Status: lifecycle.OperationParked, Phase: lifecycle.PhaseDrain, WaitingOn: lifecycle.AttentionOperator, Stuck: s, Actor: "ops-1",
			Reason: "RMA-4411", StartedAt: since.Add(-time.Hour), DeadlineAt: new(since)}}
}

// fleet answers what the overview reads.
func (b *backend) fleet() {
	p := parked()
	b.answer("GET /stuck", wire.StuckList{Stuck: []wire.StuckOperation{p},
		Nodes: []stuck.Node{{Row: "silent", NodeID: "0190b6c2-3333-7aaa-8bbb-0123456789ab", Host: "gpu-18", State: lifecycle.NodeOffline,
			Stuck: lifecycle.Stuck{WaitingOn: lifecycle.AttentionAgent, Reason: "silent", Message: "the agent has sent no heartbeat", Since: readAt().Add(-3 * time.Hour),
				Next: "gpuaas doctor gpu-18"}}},
		Faults: []wire.ControlPlaneFault{{Component: "worker", Reason: "no_pollers", Message: "no worker polls", Next: "start a worker"}}})
	running := p.OperationSummary
	running.Status, running.Stuck, running.DeadlineAt = lifecycle.OperationRunning, nil, new(readAt().Add(10*time.Minute))
	b.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{running}})
	b.answer("GET /fleet", insight.Fleet{Nodes: []insight.NodeCount{{Region: "fra1", SKU: "h100", State: lifecycle.NodeActive, Nodes: 12, GPUs: 96},
		{Region: "fra1", SKU: "h100", State: lifecycle.NodeDraining, Nodes: 1, GPUs: 8}, {Region: "ams1", SKU: "l40s", State: lifecycle.NodeActive, Nodes: 4, GPUs: 16}},
		Ended: []insight.OutcomeCount{{Status: lifecycle.OperationCompleted, Operations: 7}, {Status: lifecycle.OperationFailed, Operations: 1}}})
	b.answer("GET /audit", wire.AuditPage{Events: []audit.Row{{Host: "gpu-9", Event: audit.Event{Stream: nodeID, At: readAt().Add(-5 * time.Hour), Actor: "ops-2",
		Action: audit.Decision, Reason: "tenant agreed, TCK-99", Detail: map[string]string{"decision": "force"}}}}})
}

func TestOverview(t *testing.T) {
	s := newSite(t)
	s.backend.fleet()
	w := s.login(trust.RoleOperator).get("/console/")
	require.Equal(t, http.StatusOK, w.Code)
	golden(t, "overview", w)
	assert.Less(t, w.Body.Len(), 200<<10)
	for _, r := range s.backend.sent(http.MethodGet) {
		assert.Equal(t, "console", r.by.Name, "what pages share is read for no single subject")
	}
}

// One part of the overview that cannot be read leaves the others as they are.
func TestOverviewWithoutAPart(t *testing.T) {
	s := newSite(t)
	s.backend.fleet()
	s.backend.answer("GET /stuck", schema.NewError(schema.KindServiceUnavailable, "the database does not respond"))
	page := s.login(trust.RoleViewer).get("/console/").Body.String()
	assert.Contains(t, page, "This part cannot be read now: the database does not respond")
	assert.NotContains(t, page, "Nothing needs attention", "what is not known is not zero")
	assert.Contains(t, page, "h100")
}

// A viewer sees the options of a park, and no button.
func TestOverviewOfAViewer(t *testing.T) {
	s := newSite(t)
	s.backend.fleet()
	page := s.login(trust.RoleViewer).get("/console/").Body.String()
	assert.Contains(t, page, "gpuaas op extend gpu-17")
	assert.NotContains(t, page, `href="/console/operations/`+operationID+`/extend`)
	assert.Contains(t, page, "needs the role operator")
}

// However many pages are open, what they share is read once, also by pages that are read again after
// the same change.
func TestPagesShareReads(t *testing.T) {
	s := newSite(t)
	s.backend.fleet()
	s.login(trust.RoleViewer)
	var pages sync.WaitGroup
	for range 100 {
		pages.Go(func() { s.get("/console/", "Gpuaas-Region", "1") })
	}
	pages.Wait()
	targets := map[string]int{}
	for _, r := range s.backend.sent(http.MethodGet) {
		targets[r.target]++
	}
	assert.Len(t, targets, 4)
	for target, n := range targets {
		assert.Equal(t, 1, n, target)
	}
}
