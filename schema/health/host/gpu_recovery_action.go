package host

import (
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
)

// The reasons of gpu_recovery_action.
const (
	ReasonNoAction       = "NoRecoveryAction"
	ReasonResetRequired  = "ResetRequired"
	ReasonRebootRequired = "RebootRequired"
	ReasonOtherAction    = "OtherRecoveryAction"
)

// gpuRecoveryAction is what the driver says must be done. It has no threshold: the driver sets the
// field only when the GPU has a fault that needs the action.
func gpuRecoveryAction() health.Checker[Sample] {
	return checker{
		name: "gpu_recovery_action", input: InputGPUs, healthy: ReasonNoAction,
		applies: anyGPU(func(g GPU) bool { return g.RecoveryAction != "" }),
		faults: eachGPU(func(g GPU) health.Result {
			if g.RecoveryAction == "" || g.RecoveryAction == device.ActionNone {
				return health.Result{}
			}
			r := health.Result{Repair: g.RecoveryAction.Repair(), Detail: "the driver asks for " + string(g.RecoveryAction)}
			switch r.Repair {
			case health.RepairResetGPU:
				r.Reason = ReasonResetRequired
			case health.RepairReboot:
				r.Reason = ReasonRebootRequired
			default:
				r.Reason = ReasonOtherAction
			}
			return r
		}),
	}
}
