package clusteragent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuaas/gpuaas/schema/health"
)

// gpuResource is the resource of Nvidia's device plugin.
const gpuResource = corev1.ResourceName("nvidia.com/gpu")

// heldLabel with the value heldValue on a node keeps the program from acting on it.
const (
	heldLabel = "gpuaas.io/recovery"
	heldValue = "off"
)

// sampleOf returns what checkers read of a Node object.
func sampleOf(n *corev1.Node) health.ClusterNode {
	gpus, listed := n.Status.Allocatable[gpuResource]
	sample := health.ClusterNode{
		Name: n.Name, Labels: n.Labels, GPUs: int(gpus.Value()), HasGPUs: listed,
		BootID: n.Status.NodeInfo.BootID, CreatedAt: n.CreationTimestamp.Time,
	}
	for _, c := range n.Status.Conditions {
		sample.Conditions = append(sample.Conditions, health.ClusterCondition{
			Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message, LastChange: c.LastTransitionTime.Time,
		})
	}
	return sample
}

// checkers returns the default checkers except those that are switched off, by name.
func checkers(off []string) []health.Checker[health.ClusterNode] {
	return slices.DeleteFunc(health.NewDefaultCheckers(), func(c health.Checker[health.ClusterNode]) bool {
		return slices.Contains(off, c.Name())
	})
}

// checkerNames returns the names of the checkers except those that are switched off.
func checkerNames(off []string) (names []string) {
	for _, c := range checkers(off) {
		names = append(names, c.Name())
	}
	return names
}
