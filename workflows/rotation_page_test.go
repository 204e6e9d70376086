package workflows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/rotation"
)

// The page of a rotation names what each node has instead of what the phase requires. What a
// node reports is quoted.
func TestRotationPage(t *testing.T) {
	t.Parallel()
	page := func(k rotation.Kind, p rotation.Phase) string {
		r := rotation.Begin(k, "g1", 0)
		r.Phase, r.SetVersion, r.CA = p, 7, rotation.CA{Bundle: "b", Issuer: "CN=g2"}
		return rotationText(activities.RotationStatus{Open: true, Rotation: r, Progress: rotation.Progress{Nodes: 3, Confirmed: 1, Replicas: 2, Reloaded: 1,
			Waiting: []rotation.Waiting{{Host: "gpu-1", State: "active", SetVersion: 6, Issuer: "CN=g1", CABundle: "`rm` *b*"}}}}, nil)
	}
	stage := page(rotation.NodeCA, rotation.Stage)
	require.Contains(t, stage, "The phase is confirmed by 1 of 3 nodes, 0 waived. 1 of 2 replicas of the API accept its CAs.\n")
	require.NotContains(t, stage, "`rm`")
	require.Contains(t, page(rotation.NodeCA, rotation.Activate), "- gpu-1 (active, `certificate of CN=g1`)")
	require.Contains(t, page(rotation.TaskKey, rotation.Stage), "Set 7 is confirmed by 1 of 3 nodes")
	require.Contains(t, page(rotation.TaskKey, rotation.Stage), "- gpu-1 (active, `set 6`)")
}
