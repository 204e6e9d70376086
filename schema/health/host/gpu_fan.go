package host

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of gpu_fan.
const (
	ReasonFanTurns   = "FanTurns"
	ReasonFanFailed  = "FanFailed"
	ReasonFanStopped = "FanStopped"
)

// hotC is a temperature at which a fan must turn.
const hotC = 70

// gpuFan reports fans that do not turn. A fan that is off while its GPU is cool is normal.
func gpuFan() health.Checker[Sample] {
	return checker{
		name: "gpu_fan", threshold: 10 * time.Minute, input: InputGPUs, healthy: ReasonFanTurns,
		applies: anyGPU(func(g GPU) bool { return g.FanPercent != nil || g.FanFailed }),
		faults: eachGPU(func(g GPU) health.Result {
			switch {
			case g.FanFailed:
				return fault(ReasonFanFailed, health.RepairObserve, "the driver cannot read the fan")
			case g.FanPercent != nil && *g.FanPercent == 0 && g.TemperatureC != nil && *g.TemperatureC >= hotC:
				return fault(ReasonFanStopped, health.RepairObserve, "the fan is off"+temperature(g))
			}
			return health.Result{}
		}),
	}
}
