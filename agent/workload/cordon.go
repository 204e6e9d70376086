package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Cordon runs workload.cordon and workload.uncordon.
type Cordon struct {
	Flag      *CordonFlag
	Workloads *Monitor
}

// Set returns the executor for one of the two. It is idempotent: a second run
// changes nothing, and its Was is the state the first one left. An uncordon restores what
// drains changed. A driver that fails does not make the cordon fail: that is part of the task's
// output, and the driver tries again.
func (c Cordon) Set(on bool) func(context.Context, execution.Task) (any, error) {
	return func(ctx context.Context, t execution.Task) (any, error) {
		was, err := c.before(t)
		if err != nil {
			return nil, err
		}
		if err := c.Flag.Set(on); err != nil {
			return nil, err
		}
		follow(ctx, t, c.Workloads, on)
		list := c.Workloads.Known(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return task.CordonResult{Cordoned: on, Was: was, Workloads: Reportable(list)}, nil
	}
}

// Uncordon is Set(false), or only restores what drains changed if the params keep the cordon.
func (c Cordon) Uncordon(ctx context.Context, t execution.Task) (any, error) {
	p, err := uncordonParams(t.Params)
	if err != nil {
		return nil, err
	}
	if !p.KeepCordon {
		return c.Set(false)(ctx, t)
	}
	restoreFor(ctx, t, c.Workloads)
	cordoned, list := c.Flag.Cordoned(), c.Workloads.Known(ctx)
	return task.CordonResult{Cordoned: cordoned, Was: cordoned, Workloads: Reportable(list)}, ctx.Err()
}

// CheckUncordon refuses params that are not an uncordon's.
func CheckUncordon(params json.RawMessage) error {
	_, err := uncordonParams(params)
	return err
}

func uncordonParams(params json.RawMessage) (p task.UncordonParams, err error) {
	if text := string(bytes.TrimSpace(params)); text == "" || text == "null" {
		return p, nil
	}
	err = schema.DecodeStrict(params, wire.MaxBodyBytes, &p)
	return p, err
}

// restoreTimeout bounds how long a task waits for a driver that restores or follows a cordon.
// With listTimeout it is below the time of workload.cordon and workload.uncordon.
const restoreTimeout = 15 * time.Second

// follow makes the driver's own scheduler follow the cordon. An uncordon restores what drains
// changed first.
func follow(ctx context.Context, t execution.Task, d Driver, on bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	if !on {
		restoreFor(ctx, t, d)
	}
	if err := cordon(ctx, d, on); err != nil && t.Output != nil {
		fmt.Fprintf(t.Output, "the node's workload driver could not apply the cordon to its scheduler, and tries again: %v\n", err)
	}
}

// restoreFor lets the driver revert what drains changed for the named workloads, for all if
// there are no names. A failure does not make the task fail: it is part of the task's output,
// and the driver tries again while the node is not cordoned.
func restoreFor(ctx context.Context, t execution.Task, d Driver, names ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	if err := restore(ctx, d, names...); err != nil && t.Output != nil {
		fmt.Fprintf(t.Output, "the node's workload driver could not restore what a drain changed: %v\n", err)
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
