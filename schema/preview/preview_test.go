package preview_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/recovery"
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
