// Package machine gives gpuaas-dev-agent a simulated machine, so that no task restarts the machine of
// a developer or resets its GPUs.
package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/deploy/dev/simulate"
	"github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// FaultsFileVar names the variable with the path of the faults file (simulate.Faults). It defaults
// to faults.json beside the agent's state folder.
const FaultsFileVar = "GPUAAS_DEV_FAULTS_FILE"

// offUntilVar tells the process after a simulated reboot when the machine is on again.
const offUntilVar = "GPUAAS_DEV_OFF_UNTIL"

// Extras are the process driver and a simulated machine.
func Extras() agent.Extras {
	return agent.Extras{Drivers: workload.Drivers(), Simulate: simulateMachine}
}

// simulateMachine gives the agent a simulated machine, once that machine is on.
func simulateMachine(ctx context.Context, c agent.Config, d *agent.Deps) error {
	if at, err := time.Parse(time.RFC3339Nano, os.Getenv(offUntilVar)); err == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(at)):
		}
	}
	folder := filepath.Dir(c.StateDir)
	faults := os.Getenv(FaultsFileVar)
	if faults == "" {
		faults = filepath.Join(folder, "faults.json")
	}
	m := simulate.New(simulate.Config{
		Host: filepath.Base(folder), Faults: faults, State: filepath.Join(folder, "simulated.json"), Now: time.Now,
	})
	if err := m.Fault(); err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "reading the faults file")
	}
	d.Health, d.BootID = m, m.BootID
	d.Reboot = func(context.Context) error { return reboot(m) }
	d.Wrap = func(kind task.Type, x runner.Executor) runner.Executor { return Repairs(m, kind, x) }
	return nil
}

// Repairs replaces the executors that would repair or test the real machine by those of a simulated
// one.
func Repairs(m *simulate.Machine, kind task.Type, x runner.Executor) runner.Executor {
	switch kind {
	case task.GPUReset:
		x.Run = func(_ context.Context, t runner.Task) (any, error) {
			var p task.ResetParams
			if err := schema.DecodeStrict(t.Params, len(t.Params), &p); err != nil {
				return nil, err
			}
			return m.Reset(p)
		}
	case task.NodeVerify:
		x.Run = func(context.Context, runner.Task) (any, error) { return m.Verify(), nil }
	}
	return x
}

// reboot replaces the process by another one of the same program, which is off for a while and then
// has another boot ID. The process keeps its ID, so that the development stack finds it.
func reboot(m *simulate.Machine) error {
	off, err := m.Reboot()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	env := append(os.Environ(), offUntilVar+"="+time.Now().Add(off).Format(time.RFC3339Nano))
	return fmt.Errorf("restarting %s: %w", program, syscall.Exec(program, os.Args, env))
}
