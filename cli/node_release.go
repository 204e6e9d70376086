package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeRelease(e *env) *cobra.Command {
	var o lifecycleOptions
	c := newLifecycle(e, lifecycle.ActionRelease, words{
		short: "End a quarantine",
		long: `Ends a quarantine: probes the node's health, lifts its cordon and puts the node back
into service.`,
		example: "  gpuaas node release gpu-17 --reason \"DIMM replaced\"",
	}, &o, func(ctx context.Context, arg string) error {
		return runLifecycle(ctx, e, arg, verb{action: lifecycle.ActionRelease}, o)
	})
	o.addTimeout(c)
	return c
}
