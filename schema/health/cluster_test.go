package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
)

// condition is a condition of a Kubernetes node that did not change for a week.
func condition(kind, status, reason string) health.ClusterCondition {
	return health.ClusterCondition{Type: kind, Status: status, Reason: reason, LastChange: start().Add(-7 * 24 * time.Hour)}
}

// gpuNode is a healthy node with eight GPUs and Cilium.
func gpuNode() health.ClusterNode {
	return health.ClusterNode{
		Name: "gpu-17", Labels: map[string]string{health.LabelGPUCount: "8"}, GPUs: 8, HasGPUs: true,
		Conditions: []health.ClusterCondition{
			condition("Ready", "True", "KubeletReady"), condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
			condition("NetworkUnavailable", "False", "CiliumIsUp"),
		},
	}
}

// with returns the node with another condition of its type.
func with(n health.ClusterNode, c health.ClusterCondition) health.ClusterNode {
	n.Conditions = append([]health.ClusterCondition{c}, n.Conditions...)
	return n
}

func TestDefaultCheckers(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]time.Duration{
		"node_ready": 5 * time.Minute, "gpu": 10 * time.Minute, "disk_pressure": 30 * time.Minute, "cilium": 10 * time.Minute,
	}, health.Thresholds(health.NewDefaultCheckers()))
	healthy := health.NewTracker(health.Report{}).Observe(start(), "", health.Run(health.NewDefaultCheckers(), gpuNode()))
	require.Len(t, healthy.Conditions, 4)
	for _, c := range healthy.Conditions {
		require.Equal(t, health.Healthy, c.Status, c.Checker)
	}
}

func TestClusterCheckers(t *testing.T) {
	t.Parallel()
	gpus := func(label string, has bool, allocatable int) health.ClusterNode {
		n := gpuNode()
		n.Labels = map[string]string{health.LabelGPUCount: label}
		n.HasGPUs, n.GPUs = has, allocatable
		return n
	}
	bare := gpuNode()
	bare.Conditions = nil
	for name, c := range map[string]struct {
		checker health.Checker[health.ClusterNode]
		node    health.ClusterNode
		skipped bool
		status  health.Status
		reason  string
	}{
		"ready":                    {health.NewNodeReadyChecker(), gpuNode(), false, health.Healthy, "KubeletReady"},
		"not ready":                {health.NewNodeReadyChecker(), with(gpuNode(), condition("Ready", "False", "KubeletNotReady")), false, health.Unhealthy, "KubeletNotReady"},
		"kubelet is silent":        {health.NewNodeReadyChecker(), with(gpuNode(), condition("Ready", "Unknown", "NodeStatusUnknown")), false, health.Unhealthy, "NodeStatusUnknown"},
		"no condition yet":         {health.NewNodeReadyChecker(), bare, false, health.Unknown, "NoCondition"},
		"reason that is no token":  {health.NewNodeReadyChecker(), with(gpuNode(), condition("Ready", "False", "a b")), false, health.Unhealthy, "ReadyFalse"},
		"GPUs match":               {health.NewGPUChecker(), gpus("8", true, 8), false, health.Healthy, "GPUCountMatch"},
		"more GPUs than the label": {health.NewGPUChecker(), gpus("4", true, 8), false, health.Healthy, "GPUCountMatch"},
		"GPUs are missing":         {health.NewGPUChecker(), gpus("8", true, 7), false, health.Unhealthy, "GPUCountMismatch"},
		"no GPU is left":           {health.NewGPUChecker(), gpus("8", true, 0), false, health.Unhealthy, "NoAllocatableGPU"},
		"no GPU resource":          {health.NewGPUChecker(), gpus("8", false, 0), false, health.Unhealthy, "NoAllocatableGPU"},
		"no GPU node":              {health.NewGPUChecker(), gpus("", false, 0), true, health.Healthy, "NonGPUNode"},
		"label of zero":            {health.NewGPUChecker(), gpus("0", false, 0), true, health.Healthy, "NonGPUNode"},
		"label that is no number":  {health.NewGPUChecker(), gpus("many", true, 8), true, health.Healthy, "NonGPUNode"},
		"disk is fine":             {health.NewDiskPressureChecker(), gpuNode(), false, health.Healthy, "KubeletHasNoDiskPressure"},
		"disk pressure":            {health.NewDiskPressureChecker(), with(gpuNode(), condition("DiskPressure", "True", "KubeletHasDiskPressure")), false, health.Unhealthy, "KubeletHasDiskPressure"},
		"disk unknown":             {health.NewDiskPressureChecker(), with(gpuNode(), condition("DiskPressure", "Unknown", "NodeStatusUnknown")), false, health.Unknown, "NodeStatusUnknown"},
		"Cilium is up":             {health.NewCiliumChecker(), gpuNode(), false, health.Healthy, "CiliumIsUp"},
		"Cilium is down":           {health.NewCiliumChecker(), with(gpuNode(), condition("NetworkUnavailable", "True", "CiliumIsUp")), false, health.Unhealthy, "CiliumIsUp"},
	} {
		require.Equal(t, !c.skipped, c.checker.Applies(c.node), name)
		got := c.checker.Check(c.node)
		require.Len(t, got, 1, name)
		require.Equal(t, c.status, got[0].Status, name)
		require.Equal(t, c.reason, got[0].Reason, name)
		require.Equal(t, c.status == health.Unhealthy, got[0].Repair == health.RepairReboot, name)
	}
}

func TestCheckersThatSkipANode(t *testing.T) {
	t.Parallel()
	flannel := with(gpuNode(), condition("NetworkUnavailable", "True", "FlannelIsUp"))
	require.False(t, health.NewCiliumChecker().Applies(flannel))
	bare := health.ClusterNode{Name: "n"}
	require.False(t, health.NewCiliumChecker().Applies(bare))
	require.False(t, health.NewDiskPressureChecker().Applies(bare))
	require.False(t, health.NewGPUChecker().Applies(bare))
	require.Len(t, health.Run(health.NewDefaultCheckers(), bare), 1, "only the node's readiness is left")
}

func TestHasGPU(t *testing.T) {
	t.Parallel()
	n := gpuNode()
	n.GPUs, n.HasGPUs = 0, false
	require.True(t, health.HasGPU(n), "a node whose GPUs all failed is a GPU node")
	for _, label := range []string{"", "0", "-1", "x"} {
		n.Labels = map[string]string{health.LabelGPUCount: label}
		require.False(t, health.HasGPU(n), label)
	}
	n.Labels = nil
	require.False(t, health.HasGPU(n))
}

// Each checker's fault is due after its own threshold, not before, timed from when it was seen: the
// node's Ready condition has not changed for a week.
func TestFaultIsDueAfterItsThreshold(t *testing.T) {
	t.Parallel()
	lost := gpuNode()
	lost.GPUs = 4
	for checker, node := range map[string]health.ClusterNode{
		"node_ready":    with(gpuNode(), condition("Ready", "False", "KubeletNotReady")),
		"gpu":           lost,
		"disk_pressure": with(gpuNode(), condition("DiskPressure", "True", "KubeletHasDiskPressure")),
		"cilium":        with(gpuNode(), condition("NetworkUnavailable", "True", "CiliumIsUp")),
	} {
		checkers := health.NewDefaultCheckers()
		thresholds := health.Thresholds(checkers)
		tr := health.NewTracker(health.Report{})
		tr.Observe(start(), "", health.Run(checkers, gpuNode()))
		for s := 10 * time.Second; s <= 40*time.Minute; s += 10 * time.Second {
			due := tr.Observe(at(s), "", health.Run(checkers, node)).Due(thresholds)
			if s-10*time.Second < thresholds[checker] {
				require.Empty(t, due, "%s after %s", checker, s)
				continue
			}
			require.Len(t, due, 1, "%s after %s", checker, s)
			require.Equal(t, checker, due[0].Checker)
		}
	}
}

func TestDueNeedsAThreshold(t *testing.T) {
	t.Parallel()
	r := health.NewTracker(health.Report{}).Observe(start(), "", []health.Finding{one("gpu_xid", "", health.Unhealthy, "R")})
	require.Len(t, r.Due(map[string]time.Duration{"gpu_xid": 0}), 1)
	require.Empty(t, r.Due(map[string]time.Duration{"gpu": 0}), "another reporter's checker")
}
