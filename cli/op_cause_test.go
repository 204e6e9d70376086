package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// causeOf is the cause of a park of a node whose rack is silent.
func causeOf() cause.Report {
	at := start()
	return cause.Explain(cause.Evidence{At: at, Lookback: cause.Lookback, FaultsRead: true,
		Node: cause.Node{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeDraining, SKU: "h100", Region: "fra1", Rack: "r7", Enrolled: true,
			LastHeartbeat: at.Add(-9 * time.Minute), NotAfter: at.Add(time.Hour), RenewBy: at.Add(time.Minute)},
		Park:     cause.Park{OperationID: operationID, Action: lifecycle.ActionDrain, Phase: lifecycle.PhaseCordon, Reason: "agent_silent", Since: at.Add(-4 * time.Minute)},
		Around:   cause.Around{Receiving: true, RackNodes: 8, RackSilent: 8, RegionNodes: 40, RegionSilent: 8},
		Provider: cause.Provider{Name: "manual", Described: true},
		Changes:  []cause.Change{{At: at.Add(-20 * time.Minute), Action: "nodes.upgrade-agent", Actor: "alice", Scope: "node", Detail: "1.3.0\nnext: rm"}}})
}

func TestOpCause(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.golden("op-cause", "op", "cause", "gpu-17")
	h.golden("capacity", "capacity", "--sku", "h100")
	h.golden("node-runbook", "node", "runbook", "gpu-17")
	h.golden("node-runbook-cve", "node", "runbook", "gpu-17", "--cve", "CVE-2026-1234")
	require.Zero(t, h.run("op", "cause", "gpu-17", "-o", "jsonpath=$.top_candidate"))
	require.Equal(t, "rack_down\n", h.out.String())
	require.Equal(t, schema.ExitUsage, h.run("op", "cause", "gpu-17", "--lookback", "5m"))
	require.Zero(t, h.run("op", "cause", "gpu-17", "--lookback", "72h"))
	require.Contains(t, h.api.requests[len(h.api.requests)-1], "lookback_hours=72")
}

// TestShownCause: the probable cause is in the list of what is stuck.
func TestShownCause(t *testing.T) {
	t.Parallel()
	report := causeOf()
	o := wire.StuckOperation{ProbableCause: report.Top()}
	require.Equal(t, "no response; probably: the rack r7 lost its switch or its power", why(o, &lifecycle.Stuck{Message: "no response"}))
}

// TestPlanDurations: a dry run shows how long each phase took here, and says where there is no
// history.
func TestPlanDurations(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.durations = []insight.Duration{{Phase: "", Samples: 40, MedianSeconds: 130, P90Seconds: 610}, {Phase: lifecycle.PhaseCordon, Samples: 41, MedianSeconds: 2.4, P90Seconds: 9}}
	h.golden("drain-dry-run-history", "node", "drain", "gpu-17", "--dry-run")
	require.Contains(t, h.out.String(), "median 2s, p90 9s (of 41)")
	require.Contains(t, h.out.String(), "no history")
	require.Contains(t, h.out.String(), "median 2m10s, p90 10m10s (of 40)")
	require.Zero(t, h.run("node", "drain", "gpu-17", "--dry-run", "-o", "jsonpath=$.plan.phases[0].history.p90_seconds"))
	require.Equal(t, "9\n", h.out.String())
}
