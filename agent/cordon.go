package agent

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/task"
)

// cordon runs workload.cordon and workload.uncordon.
type cordon struct {
	flags     *flags
	workloads Workloads
}

// set returns the executor for one of the two. It is idempotent: a second run
// changes nothing, and its Was is the state the first one left.
func (c cordon) set(on bool) func(context.Context, Task) (any, error) {
	return func(ctx context.Context, t Task) (any, error) {
		was, err := c.before(t)
		if err != nil {
			return nil, err
		}
		if err := c.flags.setCordoned(on); err != nil {
			return nil, err
		}
		list, err := c.workloads.List(ctx)
		if err != nil {
			return nil, err
		}
		return task.CordonResult{Cordoned: on, Was: was, Workloads: list}, nil
	}
}

// before is the state when the task first ran: a run after a crash must report
// what stood before its own first effect.
func (c cordon) before(t Task) (was bool, err error) {
	known, err := t.Recall(&was)
	if err != nil || known {
		return was, err
	}
	was = c.flags.Cordoned()
	return was, t.Remember(was)
}
