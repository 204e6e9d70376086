package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

type nodeDrainOptions struct {
	lifecycleOptions
	drainTimeout time.Duration
	cordonOnly   bool
}

func newNodeDrain(e *env) *cobra.Command {
	var o nodeDrainOptions
	c := newLifecycle(e, lifecycle.ActionDrain, words{
		short: "End a node's work",
		long: `Cordons the node, then ends its work within --timeout. What has not ended by then
parks the operation with the names of what blocks it: wait longer with
gpuaas op extend, end it hard with gpuaas op force, or undo it with
gpuaas op cancel, which restores the state before.

With --cordon-only the node takes no new work and keeps what it has.`,
		example: `  gpuaas node drain gpu-17 --timeout 30m --reason RMA-4411
  gpuaas node drain gpu-17 --cordon-only --yes
  gpuaas node drain gpu-17 --yes --no-wait --idempotency-key rma-4411 -o json`,
	}, &o.lifecycleOptions, func(ctx context.Context, arg string) error { return runNodeDrain(ctx, e, arg, o) })
	o.addYes(c)
	c.Flags().DurationVar(&o.drainTimeout, "timeout", lifecycle.DefaultDrainTimeout, "how long work may take to end by itself")
	c.Flags().BoolVar(&o.cordonOnly, "cordon-only", false, "stop after the cordon")
	return c
}

func runNodeDrain(ctx context.Context, e *env, arg string, o nodeDrainOptions) error {
	seconds, err := drainSeconds("gpuaas node drain", "--timeout", o.drainTimeout)
	if err != nil {
		return err
	}
	v := verb{action: lifecycle.ActionDrain, consequence: "this ends the work that runs on it",
		options: lifecycle.Options{DrainTimeoutSeconds: seconds, CordonOnly: o.cordonOnly}}
	if o.cordonOnly {
		v.consequence = "it takes no new work until it is reactivated"
	}
	return runLifecycle(ctx, e, arg, v, o.lifecycleOptions)
}

// maxDrainTimeout is the longest drain, as at the admin API.
const maxDrainTimeout = 7 * 24 * time.Hour

// drainSeconds is a drain's limit as the workflow takes it.
func drainSeconds(help, flag string, d time.Duration) (int64, error) {
	if d < time.Second || d > maxDrainTimeout {
		return 0, usagef(help, "%s %s: want 1s to %s", flag, d, span(maxDrainTimeout))
	}
	return int64(d / time.Second), nil
}
