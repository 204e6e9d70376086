package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeUncordon(e *env) *cobra.Command {
	var o lifecycleOptions
	c := newLifecycle(e, lifecycle.ActionUncordon, words{
		short: "Lift the cordon of a node in service",
		long: `Lifts the cordon that gpuaas node drain --cordon-only left. The node's state does not
change.`,
		example: "  gpuaas node uncordon gpu-17",
	}, &o, func(ctx context.Context, arg string) error {
		return runLifecycle(ctx, e, arg, verb{action: lifecycle.ActionUncordon}, o)
	})
	o.addTimeout(c)
	return c
}
