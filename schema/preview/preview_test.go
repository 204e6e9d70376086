package preview_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	nodeID      = "0190b6c2-1111-7aaa-8bbb-0123456789ab"
	operationID = "0190b6c2-2222-7aaa-8bbb-0123456789ab"
)

// The plan of a provision is refused for a node whose instance runs, as the start is.
func TestPlanOfAProvisionedNode(t *testing.T) {
	t.Parallel()
	n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive, Instance: &lifecycle.Instance{State: lifecycle.InstanceRunning}}
	p := preview.Of(n, machine.Info{Name: "manual"}, lifecycle.ActionProvision, lifecycle.Options{})
	require.True(t, p.Refused)
	require.Equal(t, []preview.Blocker{{Code: schema.KindInvalidRequest, Message: "node gpu-17 is already provisioned: its instance is running", Next: "gpuaas node show gpu-17"}}, p.Blockers)
	n.Instance.State = lifecycle.InstanceTerminated
	require.False(t, preview.Of(n, machine.Info{Name: "manual"}, lifecycle.ActionProvision, lifecycle.Options{}).Refused)
}

// The plan of a provision is refused for a node that must enroll first, as the start is.
func TestPlanOfANodeThatNeverEnrolled(t *testing.T) {
	t.Parallel()
	n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeRegistered}
	require.Equal(t, []preview.Blocker{{Code: schema.KindInvalidRequest,
		Message: `node gpu-17 is not enrolled, and its provider "manual" creates no machines`, Next: "gpuaas node enroll gpu-17"}},
		preview.Of(n, machine.Info{Name: "manual"}, lifecycle.ActionProvision, lifecycle.Options{}).Blockers)
	require.False(t, preview.Of(n, machine.Info{Name: "cloud", Creates: true}, lifecycle.ActionProvision, lifecycle.Options{}).Refused)
}

// An action that holds the node supersedes an abandoned operation, as the start does.
func TestPlanOfAnAbandonedNode(t *testing.T) {
	t.Parallel()
	n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeDraining, Operation: &wire.OperationSummary{OperationID: operationID,
		Action: lifecycle.ActionDrain, Status: lifecycle.OperationAbandoned, PriorState: lifecycle.NodeActive}}
	for action, refused := range map[lifecycle.Action]bool{lifecycle.ActionDrain: false, lifecycle.ActionRetire: false,
		lifecycle.ActionReactivate: true, lifecycle.ActionReissueEnrollment: true} {
		require.Equal(t, refused, preview.Of(n, machine.Info{}, action, lifecycle.Options{}).Refused, action)
	}
	require.Equal(t, lifecycle.NodeActive, preview.Of(n, machine.Info{Name: "manual"}, lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true}).EndsAs)
	require.Equal(t, lifecycle.NodeQuarantined, preview.Of(n, machine.Info{Name: "manual"}, lifecycle.ActionRecover,
		lifecycle.Options{Recovery: recovery.Request{Rungs: []recovery.Rung{recovery.RungQuarantine}}}).EndsAs, "no rung repairs the node")
	n.Operation.Status = lifecycle.OperationRunning
	require.True(t, preview.Of(n, machine.Info{Name: "manual"}, lifecycle.ActionDrain, lifecycle.Options{}).Refused)
}

// A reissue runs beside every operation except a drain, a retire, a terminate and a remove.
func TestPlanBesideAnOperation(t *testing.T) {
	t.Parallel()
	const reissue = lifecycle.ActionReissueEnrollment
	for _, tc := range []struct {
		action, running lifecycle.Action
		refused         bool
	}{
		{lifecycle.ActionDrain, reissue, false},
		{lifecycle.ActionRetire, reissue, false},
		{reissue, lifecycle.ActionProvision, false},
		{reissue, reissue, false},
		{reissue, lifecycle.ActionDrain, true},
		{reissue, lifecycle.ActionTerminate, true},
		{lifecycle.ActionDrain, lifecycle.ActionProvision, true},
	} {
		n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive,
			Operation: &wire.OperationSummary{Action: tc.running, Status: lifecycle.OperationRunning}}
		require.Equal(t, tc.refused, preview.Of(n, machine.Info{}, tc.action, lifecycle.Options{}).Refused, "%s beside %s", tc.action, tc.running)
	}
}

// The plan of a drain names what it stops, what it only waits for, and what blocks it unless it is forced. A
// cordon stops nothing and leaves the node in its state.
func TestWorkloadsOfADrain(t *testing.T) {
	t.Parallel()
	n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive, Workloads: []task.Workload{
		{Kind: "docker", Name: "train-1", Warning: "it writes a checkpoint"}, {Kind: task.KindGPUProcess, Name: "4711"},
		{Kind: task.KindLastServer, Name: "rke2"}, {Kind: task.KindUnknown, Name: "docker does not respond"}}}
	manual := machine.Info{Name: "manual"}
	p := preview.Of(n, manual, lifecycle.ActionDrain, lifecycle.Options{})
	require.Equal(t, []string{"docker train-1"}, p.Workloads)
	require.Equal(t, []preview.Warning{{Workload: "docker train-1", Warning: "it writes a checkpoint"},
		{Workload: "gpu-process 4711", Warning: "a drain waits for its end, and does not stop it"}}, p.Warnings)
	require.Equal(t, []preview.Blocker{{Code: schema.KindNodeInUse, Message: "last-server rke2"}, {Code: schema.KindNodeInUse, Message: "docker does not respond"}}, p.Blockers)
	require.False(t, preview.Of(n, manual, lifecycle.ActionDrain, lifecycle.Options{Force: true}).Refused)
	p = preview.Of(n, manual, lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true})
	require.Empty(t, p.Workloads)
	require.False(t, p.Refused)
	require.Equal(t, lifecycle.NodeActive, p.EndsAs)
}

// A plan has the refusals of the claim: workloads, a locked identity, no machine to terminate.
func TestRefusalsOfTheClaim(t *testing.T) {
	t.Parallel()
	node := func(change func(*wire.NodeView)) wire.NodeView {
		n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive}
		change(&n)
		return n
	}
	cloud := machine.Info{Name: "cloud", Creates: true}
	for name, c := range map[string]struct {
		node   wire.NodeView
		action lifecycle.Action
		code   schema.Kind // empty: it is not refused
	}{
		"workloads":   {node(func(n *wire.NodeView) { n.Workloads = []task.Workload{{Kind: "docker", Name: "train-1"}} }), lifecycle.ActionRetire, schema.KindNodeInUse},
		"no workload": {node(func(*wire.NodeView) {}), lifecycle.ActionRetire, ""},
		"a lock":      {node(func(n *wire.NodeView) { n.IdentityLock = &trust.IdentityLock{} }), lifecycle.ActionDrain, schema.KindInvalidRequest},
		"no machine":  {node(func(*wire.NodeView) {}), lifecycle.ActionTerminate, schema.KindInvalidRequest},
		"a machine": {node(func(n *wire.NodeView) { n.Instance = &lifecycle.Instance{State: lifecycle.InstanceRunning} }),
			lifecycle.ActionTerminate, ""},
		"a machine in the ledger": {node(func(n *wire.NodeView) {
			n.State, n.Instance = lifecycle.NodeRegistered, &lifecycle.Instance{State: lifecycle.InstanceTerminated}
		}), lifecycle.ActionTerminate, ""},
	} {
		p := preview.Of(c.node, cloud, c.action, lifecycle.Options{})
		require.Equal(t, c.code != "", p.Refused, "%s: %v", name, p.Blockers)
		if c.code != "" {
			require.Equal(t, c.code, p.Blockers[0].Code, name)
		}
	}
}

// Only a release of a node with a fault that was reported lately has a warning.
func TestWarningOfARelease(t *testing.T) {
	t.Parallel()
	fault := signal.Condition{Condition: health.Condition{Checker: "xid", Status: health.Unhealthy, Reason: "Xid79", Repair: health.RepairReboot}}
	n := wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeQuarantined, Conditions: []signal.Condition{fault}}
	require.Contains(t, preview.ReleaseWarning(n, lifecycle.ActionRelease), "the node still has a fault: ")
	require.Empty(t, preview.ReleaseWarning(n, lifecycle.ActionRetire))
	n.Conditions[0].Stale = true
	require.Empty(t, preview.ReleaseWarning(n, lifecycle.ActionRelease))
}

// The history of an action is that of the operation and of each of its phases.
func TestHistoryOfAPlan(t *testing.T) {
	t.Parallel()
	p := preview.Of(wire.NodeView{ID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive}, machine.Info{Name: "manual"}, lifecycle.ActionDrain, lifecycle.Options{})
	p.Took(insight.DurationList{Durations: []insight.Duration{{Phase: "", Samples: 4, MedianSeconds: 60}, {Phase: lifecycle.PhaseDrain, Samples: 3, MedianSeconds: 40}}})
	require.NotNil(t, p.History)
	require.Equal(t, 4, p.History.Samples)
	for _, s := range p.Phases {
		if s.Name == lifecycle.PhaseDrain {
			require.NotNil(t, s.History)
			require.Equal(t, 3, s.History.Samples)
		} else {
			require.Nil(t, s.History)
		}
	}
}
