package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Task is what an executor sees of a task.
type Task struct {
	task.Payload
	// ClockOffset is the node's clock minus the server's, nil when unknown.
	ClockOffset *time.Duration
	// Note sets the message of the next progress call.
	Note func(message string)
	// Remember stores the executor's memory durably before it returns; Recall
	// reads it after a restart (ok is false at the first run).
	Remember func(v any) error
	Recall   func(v any) (ok bool, err error)
	// Paused reports whether an operator wants nothing new to be begun.
	Paused func() bool
	// Output takes what the work prints, for people to read: its last
	// task.MaxOutputTail bytes go with the result.
	Output io.Writer
	// Dir is the task's working folder, empty at the start of each run and
	// removed at its end; "" when its executor asks for none.
	Dir string
}

// Executor runs one type of task.
type Executor struct {
	// Check refuses params before the task is accepted.
	Check func(params json.RawMessage) error
	// Run does the work and returns the type's result. It ends soon after ctx.
	// An error that is no *schema.Error is reported as KindTaskFailed.
	Run func(ctx context.Context, t Task) (any, error)
	// Limit bounds one run. Nil means the smaller of the payload's max_runtime
	// and the table's.
	Limit func(p task.Payload, now time.Time) time.Duration
	// Resumable means that Run may be called again for a task that a crash
	// interrupted although its effect is destructive: it knows from its own
	// durable memory what it already did.
	Resumable bool
	// Folder asks for a working folder.
	Folder bool
	// Pauses means that Run looks at Task.Paused by itself. What does not is not
	// begun while it is paused, and then not interrupted by a pause.
	Pauses bool
	// Reported is called when the server took the result of a succeeded run,
	// each time that it did. True means that it is the last thing of this agent:
	// the task stays unreported in the journal, so that a crash before the end
	// goes on from here.
	Reported func(p task.Payload) bool
}

// noParams is the check of types that take none.
func noParams(params json.RawMessage) error {
	switch string(bytes.TrimSpace(params)) {
	case "", "null", "{}":
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "this type takes no params")
}

// limit is how long one run of the task may take.
func (x Executor) limit(p task.Payload, now time.Time) time.Duration {
	if x.Limit != nil {
		return x.Limit(p, now)
	}
	row, _ := p.Type.Info()
	if d := time.Duration(p.MaxRuntime) * time.Second; p.MaxRuntime > 0 && d < row.MaxRuntime {
		return d
	}
	return row.MaxRuntime
}

// executors is the closed list of what this agent can do.
func (a *Agent) executors() map[task.Type]Executor {
	host := hostFacts{root: "/", smi: nvidiaSMI{}}
	c := cordon{flags: a.flags, workloads: a.workloads}
	d := drain{workloads: a.workloads, now: a.keeper.clock.now}
	return map[task.Type]Executor{
		task.FactsCollect: {Check: noParams, Folder: true, Run: func(ctx context.Context, t Task) (any, error) {
			return host.within(t).collect(ctx, a.now())
		}},
		task.NodeProbe:        {Check: noParams, Folder: true, Run: probe{host: host, stateDir: a.conf.StateDir}.run},
		task.WorkloadCordon:   {Check: noParams, Run: c.set(true)},
		task.WorkloadUncordon: {Check: noParams, Run: c.set(false)},
		task.WorkloadDrain:    {Check: checkDrain, Run: d.run, Limit: drainLimit, Resumable: true, Pauses: true},
		task.UpdateTrust:      {Check: noParams, Run: a.updateTrust},
		// Its Run does nothing yet, so that it may run again.
		task.WipeIdentity: {Check: noParams, Run: nothing, Resumable: true, Reported: a.leave},
	}
}

// nothing is a run whose effect comes after its report.
func nothing(context.Context, Task) (any, error) { return struct{}{}, nil }

// leave ends agent.wipe_identity, once the server has its result: the agent
// stops and wipes its keys as for a removed node. Until the wipe has begun, the
// journal holds the task as unreported: after a crash the result is posted once
// more and leads here again. A task of an older incarnation, found in the journal
// after the node was enrolled anew, must not take the new identity.
func (a *Agent) leave(p task.Payload) bool {
	if v := a.keeper.inUse.Load(); v == nil || v.id.Incarnation != p.Incarnation {
		return false
	}
	a.log.Warn("node gives up its identity: the agent stops", "task_id", p.TaskID)
	a.leaving.Store(true)
	a.stop(errRemoved)
	return true
}
