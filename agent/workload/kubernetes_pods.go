package workload

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// kubePod is the part of a pod that the driver needs.
type kubePod struct {
	Metadata struct {
		kubeMeta
		DeletionTimestamp *time.Time  `json:"deletionTimestamp"`
		OwnerReferences   []kubeOwner `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName          string       `json:"nodeName"`
		PriorityClassName string       `json:"priorityClassName"`
		Volumes           []kubeVolume `json:"volumes"`
	} `json:"spec"`
	Status struct {
		StartTime time.Time `json:"startTime"`
	} `json:"status"`
}

type kubeOwner struct {
	Kind       string `json:"kind"`
	Controller bool   `json:"controller"`
}

// kubeVolume is a volume of a pod. A pointer is nil unless the volume is of that type.
type kubeVolume struct {
	EmptyDir *struct{} `json:"emptyDir"`
	HostPath *struct{} `json:"hostPath"`
	Claim    *struct {
		Name string `json:"claimName"`
	} `json:"persistentVolumeClaim"`
}

// mirrorAnnotation marks the copy of a static pod. The kubelet runs such a pod from a file, and
// an eviction does not end it.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// name is the workload's name.
func (p kubePod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// controller is the kind of the object that creates the pod again elsewhere, "" without one.
func (p kubePod) controller() string {
	for _, o := range p.Metadata.OwnerReferences {
		if o.Controller {
			return o.Kind
		}
	}
	return ""
}

// evictable reports whether a drain must end a pod that has not ended, by the rules of kubectl
// drain: not the pods of a DaemonSet, which would return at once, and not static pods.
func (p kubePod) evictable() bool {
	_, mirror := p.Metadata.Annotations[mirrorAnnotation]
	return !mirror && p.controller() != "DaemonSet"
}

// critical reports whether the cluster or the node depends on the pod.
func (p kubePod) critical() bool {
	return p.Spec.PriorityClassName == "system-node-critical" || p.Spec.PriorityClassName == "system-cluster-critical"
}

// stopping reports whether the pod was asked to end.
func (p kubePod) stopping() bool { return p.Metadata.DeletionTimestamp != nil }

// evictablePods returns the pods that a drain must end, in the order in which it asks them:
// critical ones last, so that the others can end with the services that they use.
func evictablePods(all []kubePod) []kubePod {
	pods := slices.DeleteFunc(all, func(p kubePod) bool { return !p.evictable() })
	rank := func(p kubePod) int {
		if p.critical() {
			return 1
		}
		return 0
	}
	slices.SortFunc(pods, func(a, b kubePod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.name(), b.name()))
	})
	return pods
}
