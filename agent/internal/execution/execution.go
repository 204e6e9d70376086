// Package execution holds the view of a task that the runner gives to executors.
package execution

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// ErrCanceled is the cause that ends the context of a run that the control plane canceled.
var ErrCanceled = errors.New("canceled by the control plane")

// Task is an executor's view of a task.
type Task struct {
	task.Payload
	// ClockOffset is the node's clock minus the server's, nil when unknown.
	ClockOffset *time.Duration
	// Note sets the message of the next progress call.
	Note func(message string)
	// Remember stores the executor's record durably before it returns; Recall
	// reads it after a restart (ok is false at the first run).
	Remember func(v any) error
	Recall   func(v any) (ok bool, err error)
	// Paused reports whether an operator paused the operation: nothing new may
	// begin.
	Paused func() bool
	// Confirm returns nil if the server confirmed during the last recent that the task
	// is still wanted, by a clock that advances while the agent is suspended. Otherwise
	// it asks the server, and retries until it gets an answer; so it always does for
	// zero. It may change Paused. If it returns an error, the context of the run has
	// ended.
	Confirm func(ctx context.Context, recent time.Duration) error
	// Output receives the work's output for operators. Its last
	// task.MaxOutputTail bytes are part of the result.
	Output io.Writer
	// Dir is the task's working folder, empty at the start of each run and
	// removed at its end; "" when its executor asks for none.
	Dir string
}
