package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeReactivate(e *env) *cobra.Command {
	var o lifecycleOptions
	c := newLifecycle(e, lifecycle.ActionReactivate, words{
		short:   "Put a retired or drained node back to service",
		long:    "Probes the node's health, lifts the cordon and puts it back to service.",
		example: "  gpuaas node reactivate gpu-17\n  gpuaas node reactivate gpu-17 --timeout 2m --reason \"board replaced\"",
	}, &o, func(ctx context.Context, arg string) error {
		return runLifecycle(ctx, e, arg, verb{action: lifecycle.ActionReactivate}, o)
	})
	o.addTimeout(c)
	return c
}
