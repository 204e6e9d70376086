package host

import (
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of gpu_count.
const (
	ReasonCountMatch    = "GPUCountMatch"
	ReasonCountMismatch = "GPUCountMismatch"
	ReasonNoGPU         = "NoGPU"
	ReasonGPULost       = "GPULost"
)

// gpuCount compares the GPUs that the driver can read with those of the node's SKU. More GPUs are no
// fault: the SKU is wrong.
func gpuCount() health.Checker[Sample] {
	return checker{
		name: "gpu_count", threshold: 10 * time.Minute, input: InputGPUs, healthy: ReasonCountMatch,
		applies: func(s Sample) bool { return s.ExpectedGPUs > 0 || len(s.GPUs) > 0 },
		faults:  countFaults,
	}
}

func countFaults(s Sample) []health.Result {
	var found []health.Result
	for _, g := range s.GPUs {
		if g.Lost {
			r := fault(ReasonGPULost, health.RepairReboot, fmt.Sprintf("the driver lists GPU %d and cannot read it", g.Index))
			r.Component = componentOf(s, g.UUID, g.PCI)
			found = append(found, r)
		}
	}
	if len(s.GPUs) >= s.ExpectedGPUs {
		return found
	}
	reason := ReasonCountMismatch
	if len(s.GPUs) == 0 {
		reason = ReasonNoGPU
	}
	return append(found, fault(reason, health.RepairReboot, fmt.Sprintf("%d of %d GPUs are present", len(s.GPUs), s.ExpectedGPUs)))
}
