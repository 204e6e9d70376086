package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Task is what an executor sees of a task.
type Task struct {
	schema.TaskPayload
	// ClockOffset is the node's clock minus the server's, nil when unknown.
	ClockOffset *time.Duration
	// Note sets the message of the next progress call.
	Note func(message string)
	// Remember stores the executor's memory durably before it returns; Recall
	// reads it after a restart (ok is false at the first run).
	Remember func(v any) error
	Recall   func(v any) (ok bool, err error)
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
	Limit func(p schema.TaskPayload, now time.Time) time.Duration
	// Resumable means that Run may be called again for a task that a crash
	// interrupted although its effect is destructive: it knows from its own
	// durable memory what it already did.
	Resumable bool
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
func (x Executor) limit(p schema.TaskPayload, now time.Time) time.Duration {
	if x.Limit != nil {
		return x.Limit(p, now)
	}
	row, _ := p.Type.Row()
	if d := time.Duration(p.MaxRuntime) * time.Second; p.MaxRuntime > 0 && d < row.MaxRuntime {
		return d
	}
	return row.MaxRuntime
}

// executors is the closed list of what this agent can do.
func (a *Agent) executors() map[schema.TaskType]Executor {
	host := hostFacts{root: "/", smi: nvidiaSMI{}}
	c := cordon{flags: a.flags, workloads: a.workloads}
	d := drain{workloads: a.workloads, now: a.now}
	return map[schema.TaskType]Executor{
		schema.TaskFactsCollect: {Check: noParams, Run: func(ctx context.Context, _ Task) (any, error) {
			return host.collect(ctx, a.now())
		}},
		schema.TaskNodeProbe:        {Check: noParams, Run: probe{host: host, stateDir: a.conf.StateDir}.run},
		schema.TaskWorkloadCordon:   {Check: noParams, Run: c.set(true)},
		schema.TaskWorkloadUncordon: {Check: noParams, Run: c.set(false)},
		schema.TaskWorkloadDrain:    {Check: checkDrain, Run: d.run, Limit: drainLimit, Resumable: true},
	}
}
