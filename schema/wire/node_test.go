package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestNextOfAFaultyNode: the next step of a quarantined node that has a fault is to read it, not to return
// the node to service.
func TestNextOfAFaultyNode(t *testing.T) {
	t.Parallel()
	n := wire.NodeView{Host: "gpu-17", State: lifecycle.NodeQuarantined, Cordoned: true}
	require.Equal(t, "gpuaas node release gpu-17", n.Next())
	n.Conditions = []signal.Condition{{Condition: health.Condition{Checker: "gpu_xid", Status: health.Unhealthy, Repair: health.RepairReboot}}}
	require.Equal(t, "gpuaas doctor gpu-17", n.Next())
	n.Conditions[0].Stale = true
	require.Equal(t, "gpuaas node release gpu-17", n.Next())
}
