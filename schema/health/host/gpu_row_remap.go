package host

import (
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of gpu_row_remap.
const (
	ReasonRowsIntact        = "RowsIntact"
	ReasonRemapFailed       = "RowRemapFailed"
	ReasonRemapPending      = "RowRemapPending"
	ReasonRetirementPending = "PageRetirementPending"
	ReasonRowsRemapped      = "RowsRemapped"
)

// gpuRowRemap reports the repair of GPU memory by spare rows, or by retired pages on models before
// Ampere. A failure means that there is no spare row left; the field diagnostic then confirms the RMA.
// A pending remap takes effect at the next reset, and the driver does not use the row until then, so it is
// no reason to drain the node. A pending page is used until the reset.
func gpuRowRemap() health.Checker[Sample] {
	return checker{
		name: "gpu_row_remap", threshold: 10 * time.Minute, input: InputGPUs, healthy: ReasonRowsIntact,
		applies: anyGPU(func(g GPU) bool { return g.RemapPending != nil || g.RemapFailure != nil || g.RetiredPending != nil }),
		faults: eachGPU(func(g GPU) health.Result {
			fresh := max(increase(g.RemapUncorrectable), increase(g.RetiredPages))
			switch {
			case isSet(g.RemapFailure):
				return fault(ReasonRemapFailed, health.RepairRMA, "a memory row could not be remapped")
			case isSet(g.RemapPending):
				return fault(ReasonRemapPending, health.RepairObserve, "a remapped memory row takes effect at the next reset of the GPU")
			case isSet(g.RetiredPending):
				return fault(ReasonRetirementPending, health.RepairResetGPU, "a retired memory page takes effect at the next reset of the GPU")
			case fresh > 0:
				return fault(ReasonRowsRemapped, health.RepairObserve, fmt.Sprintf("%d memory rows or pages were replaced", fresh))
			}
			return health.Result{}
		}),
	}
}
