package host

import (
	"fmt"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of gpu_ecc.
const (
	ReasonNoECCErrors   = "NoECCErrors"
	ReasonECCErrors     = "UncorrectableErrors"
	ReasonSRAMThreshold = "SRAMThresholdExceeded"
)

// gpuECC reports new uncorrectable memory errors. The driver recovers from them: what it needs for
// that, a reset or a repair of the hardware, shows as the recovery action and in gpu_row_remap. The
// threshold of SRAM errors is the vendor's limit for a replacement of the GPU.
func gpuECC() health.Checker[Sample] {
	return checker{
		name: "gpu_ecc", input: InputGPUs, healthy: ReasonNoECCErrors,
		applies: anyGPU(func(g GPU) bool { return g.ECCVolatile != nil || g.ECCAggregate != nil || g.SRAMThreshold != nil }),
		faults: eachGPU(func(g GPU) health.Result {
			fresh := max(increase(g.ECCVolatile), increase(g.ECCAggregate))
			switch {
			case isSet(g.SRAMThreshold):
				return fault(ReasonSRAMThreshold, health.RepairRMA, "the GPU has exceeded the threshold of SRAM errors")
			case fresh > 0:
				return fault(ReasonECCErrors, health.RepairObserve, fmt.Sprintf("%d new uncorrectable errors", fresh))
			}
			return health.Result{}
		}),
	}
}
