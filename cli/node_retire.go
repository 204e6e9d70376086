package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

type nodeRetireOptions struct {
	lifecycleOptions
	drain        bool
	drainTimeout time.Duration
}

func newNodeRetire(e *env) *cobra.Command {
	var o nodeRetireOptions
	c := newLifecycle(e, lifecycle.ActionRetire, words{
		short: "Take a node out of service, reversibly",
		long: `Takes the node out of service: its agent goes on polling and renewing, and it is
given no work until gpuaas node reactivate. A node that holds work is refused
(node_in_use) unless --drain ends the work first.`,
		example: `  gpuaas node retire gpu-17
  gpuaas node retire gpu-17 --drain --drain-timeout 30m --yes --reason "end of lease"`,
	}, &o.lifecycleOptions, func(ctx context.Context, arg string) error { return runNodeRetire(ctx, e, arg, o) })
	o.addYes(c)
	o.addTimeout(c)
	c.Flags().BoolVar(&o.drain, "drain", false, "end the node's work first")
	c.Flags().DurationVar(&o.drainTimeout, "drain-timeout", lifecycle.DefaultDrainTimeout, "with --drain: how long work may take to end by itself")
	return c
}

func runNodeRetire(ctx context.Context, e *env, arg string, o nodeRetireOptions) error {
	v := verb{action: lifecycle.ActionRetire, consequence: "it is given no work until it is reactivated"}
	if o.drain {
		seconds, err := drainSeconds("gpuaas node retire", "--drain-timeout", o.drainTimeout)
		if err != nil {
			return err
		}
		v.options = lifecycle.Options{Drain: true, DrainTimeoutSeconds: seconds}
		v.consequence = "this ends the work that runs on it and takes it out of service"
	}
	return runLifecycle(ctx, e, arg, v, o.lifecycleOptions)
}
