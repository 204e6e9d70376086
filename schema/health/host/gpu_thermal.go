package host

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of gpu_thermal.
const (
	ReasonCool            = "NoSlowdown"
	ReasonThermalSlowdown = "ThermalSlowdown"
	ReasonPowerBrake      = "PowerBrake"
	ReasonHot             = "TooHot"
)

// gpuThermal reports GPUs that the hardware slows down because of heat or power. It is a fault of the
// cooling or of the power supply, which no repair of the node cures.
func gpuThermal() health.Checker[Sample] {
	return checker{
		name: "gpu_thermal", threshold: 30 * time.Minute, input: InputGPUs, healthy: ReasonCool,
		applies: anyGPU(func(g GPU) bool { return g.TemperatureC != nil || len(g.Throttle) > 0 }),
		faults: eachGPU(func(g GPU) health.Result {
			switch {
			case slices.ContainsFunc(g.Throttle, func(reason string) bool { return strings.HasSuffix(reason, "thermal_slowdown") }):
				return fault(ReasonThermalSlowdown, health.RepairObserve, "the GPU is slowed down because of heat"+temperature(g))
			case slices.Contains(g.Throttle, "hw_power_brake_slowdown"):
				return fault(ReasonPowerBrake, health.RepairObserve, "the power supply asks the GPU to slow down")
			case g.TemperatureC != nil && g.SlowdownC != nil && *g.TemperatureC >= *g.SlowdownC:
				return fault(ReasonHot, health.RepairObserve, "the GPU is too hot"+temperature(g))
			}
			return health.Result{}
		}),
	}
}

func temperature(g GPU) string {
	if g.TemperatureC == nil {
		return ""
	}
	return fmt.Sprintf(" (%d degrees C)", *g.TemperatureC)
}
