package agent

import (
	"context"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/health"
	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/repair"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/workload"
	hosthealth "github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/schema/task"
)

// dcgm is the name of DCGM's command, which is looked up in PATH.
const dcgm = "dcgmi"

// newMonitor makes the monitor of this machine.
func newMonitor(a *Agent) (*health.Monitor, error) {
	checks, err := health.ParseSelection(a.conf.HealthChecks)
	if err != nil {
		return nil, err
	}
	c := health.Config{
		State: a.state, Root: "/", BootID: a.bootID, SMI: a.conf.NvidiaSMI, ClockOffset: a.clock.Offset, Checks: checks, Now: a.now, Log: a.log,
	}
	if up := host.Uptime("/"); up > 0 {
		c.BootedAt = a.now().Add(-time.Duration(up) * time.Second)
	}
	if units := workload.NewUnits(); units.Present() {
		c.Services = func(ctx context.Context) ([]hosthealth.Service, error) { return services(ctx, units) }
	}
	return health.New(c)
}

// services returns the states of the services that a GPU node needs. One that is disabled and does not
// run is not needed.
func services(ctx context.Context, units workload.Units) (list []hosthealth.Service, err error) {
	states, err := units.States(ctx, health.ServiceNames()...)
	for _, s := range states {
		if s.Enabled || s.Active || s.Failed {
			list = append(list, hosthealth.Service{
				Name: strings.TrimSuffix(s.Name, ".service"), Active: s.Active, Failed: s.Failed, Restarts: &hosthealth.Counter{Total: uint64(s.Restarts)},
			})
		}
	}
	return list, err
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
	r := repair.Reset{SMI: a.conf.NvidiaSMI, Outside: repair.FindOutside(units.Present()), State: a.state, Done: a.monitor.Reset}
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
		Health:    a.monitor.Check,
		WriteDisk: func(ctx context.Context) (string, error) { return repair.WriteDisk(ctx, a.conf.StateDir) },
	}
	return map[task.Type]runner.Executor{
		// Its Run restarts nothing yet, so that it may run again.
		task.NodeReboot: {Check: reboot.Check, Run: reboot.Run, Resumable: true, Reported: reboot.Reported},
		task.GPUReset:   {Check: reset.Check, Run: reset.Run, Resumable: true, Folder: true},
		task.NodeVerify: {Check: verify.Check, Run: verify.Run, Folder: true},
	}
}
