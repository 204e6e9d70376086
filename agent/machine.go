package agent

import (
	"context"
	"strings"

	"github.com/gpuaas/gpuaas/agent/repair"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/task"
)

// dcgm is the name of DCGM's command, which is looked up in PATH.
const dcgm = "dcgmi"

// newHealthMonitor makes the monitor of this machine, unless the dependencies replace it.
func newHealthMonitor(a *Agent) HealthMonitor {
	if a.deps.Health != nil {
		return a.deps.Health
	}
	return noHealth{}
}

// startReboot returns what restarts the machine: the dependency, systemd, or the kernel.
func (a *Agent) startReboot() func(context.Context) error {
	if a.deps.Reboot != nil {
		return a.deps.Reboot
	}
	if units := workload.NewUnits(); units.Present() {
		return units.Reboot
	}
	return func(context.Context) error { return rebootKernel() }
}

// gpuReset makes the executor of gpu.reset.
func (a *Agent) gpuReset() repair.Reset {
	units := workload.NewUnits()
	r := repair.Reset{SMI: a.conf.NvidiaSMI, Outside: repair.FindOutside(units.Present()), State: a.state, Done: func([]string) {}}
	if units.Present() {
		r.Units = units
	}
	return r
}

// repairs are the executors of the tasks that repair and verify the node.
func (a *Agent) repairs() map[task.Type]runner.Executor {
	reboot := repair.Reboot{BootID: a.bootID, Start: a.startReboot(), Now: a.clock.Now, Log: a.log}
	reset := a.gpuReset()
	verify := repair.Verify{
		BootID: a.bootID, DCGM: dcgm, BurnIn: strings.Fields(a.conf.BurnIn), Outside: reset.Outside,
		Health:    func(context.Context, int) ([]health.Finding, int, error) { return nil, 0, nil },
		WriteDisk: func(ctx context.Context) (string, error) { return repair.WriteDisk(ctx, a.conf.StateDir) },
	}
	return map[task.Type]runner.Executor{
		// Its Run restarts nothing yet, so that it may run again.
		task.NodeReboot: {Check: reboot.Check, Run: reboot.Run, Resumable: true, Reported: reboot.Reported},
		task.GPUReset:   {Check: reset.Check, Run: reset.Run, Resumable: true, Folder: true},
		task.NodeVerify: {Check: verify.Check, Run: verify.Run, Folder: true},
	}
}
