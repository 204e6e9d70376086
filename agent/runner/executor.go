package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Task is an executor's view of a task.
type Task = execution.Task

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
	// interrupted although its effect is destructive, because its durable
	// record holds what it already did.
	Resumable bool
	// Folder asks for a working folder.
	Folder bool
	// Pauses means that Run checks Task.Paused. Any other executor does not begin
	// while its task is paused, and a later pause does not interrupt it.
	Pauses bool
	// Reported is called each time the server accepted the result of a succeeded
	// run. If it returns true, the agent stops: the task stays unreported in the
	// journal, so that the next start continues here after a crash.
	Reported func(p task.Payload) bool
}

// NoParams is the check of types that take none.
func NoParams(params json.RawMessage) error {
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
	if p.MaxRuntime > 0 {
		return min(time.Duration(p.MaxRuntime)*time.Second, row.MaxRuntime)
	}
	return row.MaxRuntime
}
