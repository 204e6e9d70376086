package health

import (
	"fmt"
	"strconv"
	"time"
)

// The thresholds of the cluster checkers.
const (
	nodeReadyThreshold    = 5 * time.Minute
	gpuThreshold          = 10 * time.Minute
	diskPressureThreshold = 30 * time.Minute
	ciliumThreshold       = 10 * time.Minute
)

// LabelGPUCount is the label with the number of GPUs of a Kubernetes node, as GPU feature discovery
// counted them at its start. It stays when GPUs fail.
const LabelGPUCount = "nvidia.com/gpu.count"

// ciliumReason is the reason with which Cilium sets the condition NetworkUnavailable.
const ciliumReason = "CiliumIsUp"

// The reasons of the GPU checker.
const (
	ReasonGPUCountMatch    = "GPUCountMatch"
	ReasonGPUCountMismatch = "GPUCountMismatch"
	ReasonNoAllocatableGPU = "NoAllocatableGPU"
	ReasonNonGPUNode       = "NonGPUNode"
)

// ClusterNode is a sample of a Kubernetes node.
type ClusterNode struct {
	Name   string
	Labels map[string]string
	// GPUs is how many nvidia.com/gpu are allocatable; HasGPUs is false if the node does not list the
	// resource.
	GPUs       int
	HasGPUs    bool
	Conditions []ClusterCondition
	BootID     string
	CreatedAt  time.Time
}

// ClusterCondition is a condition of a Kubernetes node.
type ClusterCondition struct {
	Type       string
	Status     string // True, False or Unknown
	Reason     string
	Message    string
	LastChange time.Time
}

// condition returns the condition of a type.
func (n ClusterNode) condition(name string) (ClusterCondition, bool) {
	for _, c := range n.Conditions {
		if c.Type == name {
			return c, true
		}
	}
	return ClusterCondition{}, false
}

// HasGPU reports whether the node has GPUs: by its label, so that a node whose GPUs have all failed is
// one too.
func HasGPU(n ClusterNode) bool { return expectedGPUs(n) > 0 }

// expectedGPUs returns the number in the label, 0 if there is none.
func expectedGPUs(n ClusterNode) int {
	count, err := strconv.Atoi(n.Labels[LabelGPUCount])
	if err != nil {
		return 0
	}
	return max(0, count)
}

// NewDefaultCheckers returns the checkers of Kubernetes nodes. Each decides whether it applies to a
// node.
func NewDefaultCheckers() []Checker[ClusterNode] {
	return []Checker[ClusterNode]{NewNodeReadyChecker(), NewGPUChecker(), NewDiskPressureChecker(), NewCiliumChecker()}
}

// NewNodeReadyChecker returns the checker of the condition Ready.
func NewNodeReadyChecker() Checker[ClusterNode] { return nodeReadyChecker{} }

// NewGPUChecker returns the checker that compares the label nvidia.com/gpu.count with the allocatable
// GPUs.
func NewGPUChecker() Checker[ClusterNode] { return gpuChecker{} }

// NewDiskPressureChecker returns the checker of the condition DiskPressure.
func NewDiskPressureChecker() Checker[ClusterNode] { return diskPressureChecker{} }

// NewCiliumChecker returns the checker of Cilium, by the condition NetworkUnavailable. It skips nodes
// with another CNI.
func NewCiliumChecker() Checker[ClusterNode] { return ciliumChecker{} }

type nodeReadyChecker struct{}

func (nodeReadyChecker) Name() string             { return "node_ready" }
func (nodeReadyChecker) Threshold() time.Duration { return nodeReadyThreshold }
func (nodeReadyChecker) Applies(ClusterNode) bool { return true }

// Check returns unhealthy unless Ready is True. Kubernetes sets Unknown when the kubelet is silent,
// which is the fault that this checker is for.
func (nodeReadyChecker) Check(n ClusterNode) []Result {
	c, ok := n.condition("Ready")
	switch {
	case !ok:
		return []Result{{Status: Unknown, Reason: "NoCondition"}}
	case c.Status == "True":
		return c.result(Healthy)
	}
	return c.result(Unhealthy)
}

type gpuChecker struct{}

func (gpuChecker) Name() string                 { return "gpu" }
func (gpuChecker) Threshold() time.Duration     { return gpuThreshold }
func (gpuChecker) Applies(n ClusterNode) bool   { return HasGPU(n) }
func (gpuChecker) Check(n ClusterNode) []Result { return []Result{gpuResult(n)} }

func gpuResult(n ClusterNode) Result {
	expected := expectedGPUs(n)
	r := Result{Status: Unhealthy, Repair: RepairReboot, Detail: fmt.Sprintf("%d of %d GPUs are allocatable", n.GPUs, expected)}
	switch {
	case expected == 0:
		return Result{Status: Healthy, Reason: ReasonNonGPUNode}
	case !n.HasGPUs || n.GPUs == 0:
		r.Reason = ReasonNoAllocatableGPU
	case n.GPUs < expected:
		r.Reason = ReasonGPUCountMismatch
	default:
		r.Status, r.Repair, r.Reason = Healthy, "", ReasonGPUCountMatch
	}
	return r
}

type diskPressureChecker struct{}

func (diskPressureChecker) Name() string             { return "disk_pressure" }
func (diskPressureChecker) Threshold() time.Duration { return diskPressureThreshold }
func (diskPressureChecker) Applies(n ClusterNode) bool {
	_, ok := n.condition("DiskPressure")
	return ok
}

func (diskPressureChecker) Check(n ClusterNode) []Result {
	c, _ := n.condition("DiskPressure")
	return c.result(inverse(c.Status))
}

type ciliumChecker struct{}

func (ciliumChecker) Name() string             { return "cilium" }
func (ciliumChecker) Threshold() time.Duration { return ciliumThreshold }
func (ciliumChecker) Applies(n ClusterNode) bool {
	c, ok := n.condition("NetworkUnavailable")
	return ok && c.Reason == ciliumReason
}

func (ciliumChecker) Check(n ClusterNode) []Result {
	c, _ := n.condition("NetworkUnavailable")
	return c.result(inverse(c.Status))
}

// inverse is the status of a condition that should be False. Unknown means that the kubelet is silent,
// which the condition Ready shows.
func inverse(status string) Status {
	switch status {
	case "False":
		return Healthy
	case "True":
		return Unhealthy
	}
	return Unknown
}

// result passes the condition's own reason on, so that it is the label of metrics.
func (c ClusterCondition) result(s Status) []Result {
	r := Result{Status: s, Reason: reasonOr(c.Reason, c.Type+c.Status), Detail: c.Message}
	if s == Unhealthy {
		r.Repair = RepairReboot
	}
	return []Result{r}
}
