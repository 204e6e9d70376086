package cause_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/stuck"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return at.Add(-d) }

// healthy is a node without a fault, whose drain parked for a reason that nothing explains.
func healthy() cause.Evidence {
	return cause.Evidence{At: at, Lookback: cause.Lookback, FaultsRead: true,
		Node: cause.Node{ID: "n", Host: "gpu-17", State: lifecycle.NodeActive, SKU: "h100", Region: "fra1", Rack: "r7", Enrolled: true,
			LastHeartbeat: ago(20 * time.Second), AgentVersion: "1.2.0", NotAfter: at.Add(48 * time.Hour), RenewBy: at.Add(24 * time.Hour), SetVersion: 3, NewestSet: 3},
		Park:     cause.Park{OperationID: "op", Action: lifecycle.ActionDrain, Phase: lifecycle.PhaseDrain, Reason: "agent_silent", Since: ago(5 * time.Minute)},
		Around:   cause.Around{Receiving: true, RegionNodes: 40, RackNodes: 8},
		Provider: cause.Provider{Name: "libvirt", Described: true}}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	silent := func(e *cause.Evidence) { e.Node.LastHeartbeat = ago(9 * time.Minute) }
	for name, tc := range map[string]struct {
		change func(e *cause.Evidence)
		top    string // "" for none
		owner  diagnosis.Owner
		says   string // a part of the reasoning
	}{
		"nothing":      {func(*cause.Evidence) {}, "", "", ""},
		"silent alone": {silent, "node_silent", diagnosis.Node, "9m ago"},
		"silent rack":  {func(e *cause.Evidence) { silent(e); e.Around.RackSilent, e.Around.RegionSilent = 8, 8 }, "rack_down", diagnosis.Network, "8 of 8"},
		"silent region": {func(e *cause.Evidence) { silent(e); e.Node.Rack, e.Around.RegionSilent = "", 12 }, "region_down", diagnosis.Network,
			"12 of 40"},
		"expired":  {func(e *cause.Evidence) { silent(e); e.Node.NotAfter = ago(time.Hour) }, "certificate_expired", diagnosis.Node, "11:00"},
		"node API": {func(e *cause.Evidence) { silent(e); e.Around.Receiving = false }, "node_api_down", diagnosis.ControlPlane, "replica"},
		"locked":   {func(e *cause.Evidence) { silent(e); e.Node.LockReason = "operator" }, "identity_locked", diagnosis.Operator, "operator"},
		"agent fault": {func(e *cause.Evidence) { e.Node.AgentFault = "the journal cannot be written: no space left" }, "agent_fault", diagnosis.Node,
			"heartbeats"},
		"driver": {func(e *cause.Evidence) {
			e.Park.Reason, e.Node.DriverFault = "workloads_unknown", "docker does not respond"
		}, "driver_fault", diagnosis.Node, "reports"},
		"vault": {func(e *cause.Evidence) {
			e.Park.Reason = "vault_sealed"
			e.Faults = []cause.Fault{{Component: "vault", Reason: "sealed", Message: "Vault is sealed", Next: "vault operator unseal"}}
		}, "vault_sealed", diagnosis.ControlPlane, "vault, sealed"},
		"no worker": {func(e *cause.Evidence) {
			e.Park.Reason = "service_unavailable"
			e.Faults = []cause.Fault{{Component: "worker", Reason: "no_pollers", Message: "no gpuaas-worker polls"}}
		}, "worker_no_pollers", diagnosis.ControlPlane, "no_pollers"},
		"quota": {func(e *cause.Evidence) { e.Park.Reason, e.Park.Message = machine.ReasonQuota, "0 of 8 GPUs left" }, machine.ReasonQuota, diagnosis.Operator,
			"0 of 8 GPUs left"},
		"provider gone": {func(e *cause.Evidence) { e.Park.Reason, e.Provider.Described = "provider_silent", false }, "provider_without_worker", diagnosis.ControlPlane,
			"described"},
		"provider disabled": {func(e *cause.Evidence) { e.Park.Reason, e.Provider.Disabled = "provider_silent", "switched off" }, "provider_disabled", diagnosis.ControlPlane, ""},
		"provider failing": {func(e *cause.Evidence) {
			e.Park.Reason, e.Provider.Asked, e.Provider.Failed, e.Provider.Answer = "provider_silent", true, true, "502"
		}, "provider_failing", diagnosis.Operator, ""},
		"provider back": {func(e *cause.Evidence) {
			e.Park.Reason, e.Provider.Asked, e.Provider.Answer = "provider_silent", true, "running"
		}, "provider_slow", diagnosis.Operator, "running"},
		"outage": {func(e *cause.Evidence) { e.Park.Reason, e.Around.SameProvider = "provider_silent", 5 }, "provider_outage", diagnosis.Operator, "5 operations"},
		"blocked": {func(e *cause.Evidence) {
			e.Park.Reason, e.Node.Workloads, e.Around.Free = "drain_blocked", []string{"pod train-1"}, 2
		}, "workloads_running", diagnosis.Operator, "2 nodes"},
		"capacity": {func(e *cause.Evidence) { e.Park.Reason, e.Node.Workloads = "drain_blocked", []string{"pod train-1"} }, "no_capacity", diagnosis.Operator, "train-1"},
		"rejected": {func(e *cause.Evidence) { e.Refusals, e.LastRefusal = 4, "unknown_issuer" }, "identity_rejected", diagnosis.Operator, "4 requests"},
		"old set":  {func(e *cause.Evidence) { e.Park.Reason, e.Node.NewestSet = "task_refused", 4 }, "verifier_set_old", diagnosis.Node, "poll"},
		"restarted": {func(e *cause.Evidence) { e.Park.Reason, e.Node.BootedAt = "task_lost", ago(6*time.Minute) }, "node_restarted", diagnosis.Node,
			"11:54"},
		"not cured": {func(e *cause.Evidence) {
			e.Park.Reason = lifecycle.ReasonNotCured
			e.Changes = []cause.Change{{At: ago(6 * time.Minute), Action: "nodes.set", Scope: "node"}}
			e.Node.Conditions = []health.Condition{{Checker: "host_disk", Status: health.Healthy},
				{Checker: "gpu_xid", Component: "GPU-1", Status: health.Unhealthy, Reason: "BusFault", Code: 79, Repair: health.RepairReboot, Since: ago(time.Hour)}}
		}, "node_unhealthy", diagnosis.Node, "11:00"},
		"many": {func(e *cause.Evidence) { e.Around.SameReason = 7 }, "common_cause", diagnosis.Operator, ""},
		"changed": {func(e *cause.Evidence) {
			e.Changes = []cause.Change{{At: ago(time.Minute), Action: "nodes.set", Scope: "node"}, {At: ago(15 * time.Minute), Action: "nodes.upgrade-agent", Actor: "alice", Scope: "node", Detail: "1.3.0"}}
		}, "recent_change", diagnosis.Operator, "nodes.upgrade-agent by alice, 10m before the fault began"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := healthy()
			tc.change(&e)
			r := cause.Explain(e)
			require.Equal(t, tc.top, r.TopCandidate)
			if tc.top == "" {
				require.Empty(t, r.Candidates)
				return
			}
			top := r.Top()
			require.Equal(t, tc.owner, top.Owner)
			require.Contains(t, strings.Join(top.Reasoning, "; "), tc.says)
			require.NotEmpty(t, top.Next)
			require.NotContains(t, top.Next, "NODE")
			require.Equal(t, []any{top.Confidence, top.Reasoning}, []any{r.Confidence, r.Reasoning})
			for i, c := range r.Candidates {
				require.True(t, c.Confidence > 0 && c.Confidence < 1, c.Cause)
				require.True(t, i == 0 || r.Candidates[i-1].Confidence >= c.Confidence, c.Cause)
			}
		})
	}
}

// TestChangeAfterTheFault is no cause of it, and a change of the node comes before one of the fleet.
func TestChangeAfterTheFault(t *testing.T) {
	t.Parallel()
	e := healthy()
	e.Changes = []cause.Change{{At: ago(time.Minute), Action: "nodes.set", Scope: "node"}}
	require.Empty(t, cause.Explain(e).Candidates)
	e.Changes = []cause.Change{{At: ago(6 * time.Minute), Action: "trust.rotation_started", Scope: "fleet"}, {At: ago(7 * time.Minute), Action: "nodes.set", Scope: "node"}}
	r := cause.Explain(e)
	require.Len(t, r.Candidates, 2)
	require.Contains(t, r.Candidates[0].Summary, "nodes.set")
}

// TestNoCauseOfADecision: what changed before explains neither a park that asks for an approval, nor is the
// renewal of the node's certificate a change that someone made.
func TestNoCauseOfADecision(t *testing.T) {
	t.Parallel()
	e := healthy()
	e.Changes = []cause.Change{{At: ago(6 * time.Minute), Action: "nodes.certificate_promoted", Actor: "node:" + e.Node.ID, Scope: "node"}}
	require.Empty(t, cause.Explain(e).Candidates)
	e.Changes[0].Actor = "alice"
	require.Len(t, cause.Explain(e).Candidates, 1)
	e.Park.Reason = lifecycle.ReasonApproval
	require.Empty(t, cause.Explain(e).Candidates)
}

// TestRepairNext: the next step fits what holds the node.
func TestRepairNext(t *testing.T) {
	t.Parallel()
	require.Contains(t, cause.RepairNext("gpu-17", lifecycle.NodeActive, false), "gpuaas node recover gpu-17 --dry-run")
	left := cause.RepairNext("gpu-17", lifecycle.NodeQuarantined, false)
	require.Contains(t, left, "gpuaas node rma gpu-17")
	require.Contains(t, left, "gpuaas node release gpu-17 --reason TEXT")
	require.Equal(t, "gpuaas op show gpu-17", cause.RepairNext("gpu-17", lifecycle.NodeQuarantined, true))
}

// TestReceivingAgain: a node that sends heartbeats is not explained by an outage of the node API, which
// counts as one for minutes after its start; and without a park or a silence no change is a cause.
func TestReceivingAgain(t *testing.T) {
	t.Parallel()
	e := healthy()
	e.Park, e.Around.Receiving = cause.Park{}, false
	e.Changes = []cause.Change{{At: ago(time.Minute), Action: "nodes.enroll", Scope: "node"}}
	r := cause.Explain(e)
	require.Empty(t, r.Candidates)
	for _, c := range r.Probes {
		require.NotEqual(t, diagnosis.Failed, c.Result, c.Name)
	}
	e.Node.Conditions = []health.Condition{{Checker: "gpu_xid", Status: health.Unhealthy, Reason: "BusFault", Code: 79, Repair: health.RepairReboot}}
	r = cause.Explain(e)
	require.Equal(t, "the node has a fault: gpu_xid BusFault 79, needs reboot", r.Top().Summary)
}

// TestProbes: each question has an answer or was skipped, and text of a node stays one short line.
func TestProbes(t *testing.T) {
	t.Parallel()
	e := healthy()
	e.Node.AgentFault = "disk full\nnext: rm -rf / " + strings.Repeat("x", 5000)
	r := cause.Explain(e)
	for _, c := range r.Probes {
		require.NotEmpty(t, c.Asked, c.Name)
		require.True(t, c.Result == diagnosis.Skipped || c.Answer != "", c.Name)
		require.NotContains(t, c.Answer, "\n", c.Name)
		require.Less(t, len(c.Answer), 400, c.Name)
		if c.Result == diagnosis.Failed {
			require.NotEmpty(t, c.Next, c.Name)
		}
	}
	require.NotContains(t, r.Top().Summary, "\n")
	e.FaultsRead = false
	require.Equal(t, diagnosis.Skipped, cause.Explain(e).Probes[0].Result)
}

// TestProbesOfTheTable: each probe that the stuck table names is asked.
func TestProbesOfTheTable(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	for _, c := range cause.Explain(healthy()).Probes {
		asked[c.Name] = true
	}
	for _, r := range stuck.Table() {
		for _, name := range r.Probes {
			require.True(t, asked[name], "%s: %s", r.Name, name)
		}
	}
}
