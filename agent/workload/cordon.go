package workload

import (
	"context"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Cordon runs workload.cordon and workload.uncordon.
type Cordon struct {
	Flag      *CordonFlag
	Workloads *Monitor
}

// Set returns the executor for one of the two. It is idempotent: a second run
// changes nothing, and its Was is the state the first one left. The workloads are only
// reported: a driver that fails does not make the cordon fail.
func (c Cordon) Set(on bool) func(context.Context, execution.Task) (any, error) {
	return func(ctx context.Context, t execution.Task) (any, error) {
		was, err := c.before(t)
		if err != nil {
			return nil, err
		}
		if err := c.Flag.Set(on); err != nil {
			return nil, err
		}
		list := c.Workloads.Known(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return task.CordonResult{Cordoned: on, Was: was, Workloads: Reportable(list)}, nil
	}
}

// before returns the cordon as it was when the task first ran: a run after a crash must
// report the state before the task's own first effect.
func (c Cordon) before(t execution.Task) (was bool, err error) {
	known, err := t.Recall(&was)
	if err != nil || known {
		return was, err
	}
	was = c.Flag.Cordoned()
	return was, t.Remember(was)
}
