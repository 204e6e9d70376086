package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeProvision(e *env) *cobra.Command {
	var o lifecycleOptions
	c := newLifecycle(e, lifecycle.ActionProvision, words{
		short: "Make a node ready to be given work",
		long: `Takes the machine from its provider (the manual one adopts the host as it is),
waits for its agent, collects facts, probes its health and compares both with the
SKU. Then its instance is running. A machine that is not what was registered
parks the operation.`,
		example: `  gpuaas node provision gpu-17
  gpuaas node provision gpu-17 --dry-run
  gpuaas node provision gpu-17 --no-wait -o json`,
	}, &o, func(ctx context.Context, arg string) error {
		return runLifecycle(ctx, e, arg, verb{action: lifecycle.ActionProvision}, o)
	})
	o.addTimeout(c)
	return c
}
