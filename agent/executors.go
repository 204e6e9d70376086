package agent

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/release"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/task"
)

// executors is the closed list of task types that this agent runs.
func (a *Agent) executors() map[task.Type]runner.Executor {
	machine := host.New("/", a.conf.NvidiaSMI)
	c := workload.Cordon{Flag: a.cordon, Workloads: a.workloads}
	d := workload.Drain{Workloads: a.workloads, GPUs: a.workloads.GPUProcesses, Now: a.clock.Now}
	renewed := newIdentity{api: a.api, identity: a.identity, log: a.log}
	probeIn := func(ctx context.Context, t runner.Task) (any, error) {
		return host.Probe{Host: machine.For(programsOf(t)), StateDir: a.conf.StateDir}.Run(ctx, t.ClockOffset)
	}
	all := map[task.Type]runner.Executor{
		task.FactsCollect: {Check: runner.NoParams, Folder: true, Run: func(ctx context.Context, t runner.Task) (any, error) {
			return machine.For(programsOf(t)).Collect(ctx, a.now())
		}},
		task.NodeProbe:        {Check: runner.NoParams, Folder: true, Run: probeIn},
		task.WorkloadCordon:   {Check: runner.NoParams, Run: c.Set(true)},
		task.WorkloadUncordon: {Check: workload.CheckUncordon, Run: c.Uncordon},
		task.WorkloadDrain:    {Check: workload.CheckDrain, Run: d.Run, Limit: workload.DrainLimit, Resumable: true, Pauses: true},
		task.UpdateTrust:      {Check: checkTrustParams, Run: a.updateTrust},
		task.AgentUpgrade:     {Check: release.Check, Run: a.upgrade.Run, Resumable: true},
		task.NewIdentity:      {Check: runner.NoParams, Run: renewed.run, Reported: renewed.reported},
		// Its Run wipes nothing yet, so that it may run again.
		task.WipeIdentity: {Check: runner.NoParams, Run: deleteRecords(a.workloads), Resumable: true, Reported: a.leave},
	}
	maps.Copy(all, a.repairs())
	return all
}

// programsOf runs programs for a task.
func programsOf(t runner.Task) command.Runner { return command.Runner{Dir: t.Dir, Output: t.Output} }

// leaveTimeout bounds how long agent.wipe_identity waits for the workload driver.
const leaveTimeout = 10 * time.Second

// deleteRecords begins agent.wipe_identity: the workload driver deletes its record of the node in
// another system. A record that stays does not keep the node from being removed: the task's
// output says what to do.
func deleteRecords(w *workload.Monitor) func(context.Context, runner.Task) (any, error) {
	return func(ctx context.Context, t runner.Task) (any, error) {
		if err := t.Confirm(ctx, task.LeaseDuration); err != nil {
			return nil, err
		}
		limited, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		if err := w.Leave(limited); err != nil && t.Output != nil {
			fmt.Fprintln(t.Output, err.Error())
		}
		return struct{}{}, ctx.Err()
	}
}

// leave ends agent.wipe_identity, once the server has its result: the agent
// stops and wipes its keys as for a removed node. Until the wipe has begun, the
// journal holds the task as unreported: after a crash the result is posted once
// more and leads here again. A task of an older incarnation, found in the journal
// after the node was enrolled again, must not wipe the new identity.
func (a *Agent) leave(p task.Payload) bool {
	if v := a.identity.Current(); v == nil || v.ID.Incarnation != p.Incarnation {
		return false
	}
	a.log.Warn("node identity is being wiped: the agent stops", "task_id", p.TaskID)
	a.leaving.Store(true)
	a.stop(apierror.ErrRemoved)
	return true
}
