package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestReleaseWarnsOfAFault: a release names the fault that the node still has, in its plan and before it
// starts. A fault that needs no repair, and one that was not reported again, are no reason.
func TestReleaseWarnsOfAFault(t *testing.T) {
	t.Parallel()
	const warning = "the node still has a fault: gpu_xid GPU-0 Xid 79, needs reboot"
	fault := signal.Condition{Condition: health.Condition{Checker: "gpu_xid", Component: "GPU-0", Status: health.Unhealthy, Reason: "Xid", Code: 79,
		Repair: health.RepairReboot, Since: start().Add(-time.Hour)}}
	stale, observed := fault, fault
	stale.Stale, observed.Repair = true, health.RepairNone
	for _, tc := range []struct {
		condition signal.Condition
		verb      string
		warned    bool
	}{{fault, "release", true}, {stale, "release", false}, {observed, "release", false}, {fault, "drain", false}} {
		h := setup(t)
		n := enrolled()
		if n.Conditions = []signal.Condition{tc.condition}; tc.verb == "release" {
			n.State = lifecycle.NodeQuarantined
		}
		h.api.nodes = []wire.NodeView{n}
		h.run("node", tc.verb, "gpu-17", "--dry-run")
		require.Contains(t, h.out.String(), "Plan: "+tc.verb)
		require.Equal(t, tc.warned, strings.Contains(h.out.String(), warning), h.out.String())
		h.run("node", tc.verb, "gpu-17", "--no-wait", "--reason", "RMA-4411")
		require.Equal(t, tc.warned, strings.Contains(h.err.String(), "warning: "+warning), h.err.String())
	}
}
