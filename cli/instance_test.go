package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const instanceID = "0198f000-0000-7000-8000-0000000000e1"

// instances are the live one of gpu-17, and an ended one of a node that was removed.
func instances() []instance.View {
	return []instance.View{
		{Instance: lifecycle.Instance{InstanceID: instanceID, Provider: "libvirt", ExternalID: "gpuaas-gpu-17", State: lifecycle.InstanceDraining,
			StateSince: start().Add(-12 * time.Minute), Options: machine.Options{Region: "fra1", Type: "gpu-8", Image: "noble", Spot: true, SSHKeys: []string{"ssh-ed25519 AAAA me"}}},
			NodeID: nodeID, Host: "gpu-17", StartedAt: start().Add(-26 * time.Hour),
			ArtifactsAt: at(-time.Minute), Artifacts: map[string]string{"kernel": "6.8", "containerd": "aa\x1b[2J"},
			Operation: &wire.OperationSummary{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain,
				Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseDrain, Actor: "bob@laptop", StartedAt: start().Add(-13 * time.Minute)}},
		{Instance: lifecycle.Instance{InstanceID: "0198f000-0000-7000-8000-0000000000e2", Provider: "manual", State: lifecycle.InstanceTerminated,
			StateSince: start().Add(-time.Hour)}, NodeID: "0198f000-0000-7000-8000-000000000018", Host: "gpu-18",
			StartedAt: start().Add(-50 * time.Hour), EndedAt: at(-time.Hour)},
	}
}

func TestInstance(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"list":         {"list"},
		"list-wide":    {"list", "-o", "wide"},
		"list-node":    {"list", "--node", "gpu-18", "-o", "json"},
		"list-none":    {"list", "--state", "pending", "--provider", "maas"},
		"show":         {"show", instanceID},
		"show-ended":   {"show", "0198f000-0000-7000-8000-0000000000e2"},
		"show-unknown": {"show", "0198f000-0000-7000-8000-0000000000e9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setup(t).golden("instance-"+name, append([]string{"instance"}, args...)...)
		})
	}
	t.Run("the filters are sent", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("instance", "list", "--node", "gpu-17", "--state", "draining,running", "--provider", "libvirt", "--limit", "1"))
		require.Contains(t, h.api.requests[0], "/instances?limit=1&node=gpu-17&state=draining&state=running&provider=libvirt ")
		require.Contains(t, h.out.String(), instanceID)
	})
}

// TestNodeShowsItsInstance: node show has the machine and the times of the instance, and without the
// times what the node has of it.
func TestNodeShowsItsInstance(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.nodes[0].Instance = &h.api.instances[0].Instance
	h.golden("node-show-instance", "node", "show", "gpu-17")
	h.api.instances = nil
	h.golden("node-show-instance-unread", "node", "show", "gpu-17")
}
