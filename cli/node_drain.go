package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeDrainOptions struct {
	lifecycleOptions
	deadline   time.Duration
	cordonOnly bool
}

func newNodeDrain(e *env) *cobra.Command {
	var o nodeDrainOptions
	c := newLifecycle(e, lifecycle.ActionDrain, words{
		short: "End a node's work",
		long: `Cordons the node, then ends its work within --deadline. Workloads that have not ended by then
park the operation, which names them: wait longer with gpuaas op extend, undo the
drain with gpuaas op cancel, which restores the state before, or kill the workloads
with gpuaas op force.

With --cordon-only the node takes no new work and keeps what it has.`,
		example: `  gpuaas node drain gpu-17 --deadline 30m --reason RMA-4411
  gpuaas node drain gpu-17 --cordon-only --yes
  gpuaas node drain gpu-17 --yes --no-wait --idempotency-key rma-4411 -o json`,
	}, &o.lifecycleOptions, func(ctx context.Context, arg string) error { return runNodeDrain(ctx, e, arg, o) })
	o.addYes(c)
	o.addTimeout(c)
	c.Flags().DurationVar(&o.deadline, "deadline", lifecycle.DefaultDrainTimeout, "stop waiting for workloads after this; what still runs parks the drain")
	c.Flags().BoolVar(&o.cordonOnly, "cordon-only", false, "stop after the cordon")
	return c
}

func runNodeDrain(ctx context.Context, e *env, arg string, o nodeDrainOptions) error {
	seconds, err := drainSeconds("gpuaas node drain", "--deadline", o.deadline)
	if err != nil {
		return err
	}
	v := verb{action: lifecycle.ActionDrain, consequence: "this ends the workloads that run on it",
		options: lifecycle.Options{DrainTimeoutSeconds: seconds, CordonOnly: o.cordonOnly}}
	if o.cordonOnly {
		v.consequence = "it takes no new work until it is reactivated"
	}
	return runLifecycle(ctx, e, arg, v, o.lifecycleOptions)
}

// drainSeconds is a drain's deadline in the unit of lifecycle.Options.
func drainSeconds(help, flag string, d time.Duration) (int64, error) {
	if d < time.Second || d > wire.MaxDrainDeadline {
		return 0, usagef(help, "%s %s: want 1s to %s", flag, d, span(wire.MaxDrainDeadline))
	}
	return int64(d / time.Second), nil
}
