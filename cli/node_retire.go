package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

type nodeRetireOptions struct {
	lifecycleOptions
	drain    bool
	deadline time.Duration
}

func newNodeRetire(e *env) *cobra.Command {
	var o nodeRetireOptions
	c := newLifecycle(e, lifecycle.ActionRetire, words{
		short: "Take a node out of service, reversibly",
		long: `Takes the node out of service: its agent keeps polling and renewing, and it gets
no work until gpuaas node reactivate. A node with workloads is refused
(node_in_use) unless --drain ends them first.`,
		example: `  gpuaas node retire gpu-17
  gpuaas node retire gpu-17 --drain --deadline 30m --yes --reason "end of lease"`,
	}, &o.lifecycleOptions, func(ctx context.Context, arg string) error { return runNodeRetire(ctx, e, arg, o) })
	o.addYes(c)
	o.addTimeout(c)
	c.Flags().BoolVar(&o.drain, "drain", false, "end the node's workloads first")
	c.Flags().DurationVar(&o.deadline, "deadline", lifecycle.DefaultDrainTimeout, "with --drain: stop waiting for workloads after this; what still runs parks the drain")
	return c
}

func runNodeRetire(ctx context.Context, e *env, arg string, o nodeRetireOptions) error {
	v := verb{action: lifecycle.ActionRetire, consequence: "it gets no work until it is reactivated"}
	if o.drain {
		seconds, err := drainSeconds("gpuaas node retire", "--deadline", o.deadline)
		if err != nil {
			return err
		}
		v.options = lifecycle.Options{Drain: true, DrainTimeoutSeconds: seconds}
		v.consequence = "this ends the workloads that run on it and takes it out of service"
	}
	return runLifecycle(ctx, e, arg, v, o.lifecycleOptions)
}
