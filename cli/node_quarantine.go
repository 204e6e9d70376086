package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeQuarantine(e *env) *cobra.Command {
	var o lifecycleOptions
	c := newLifecycle(e, lifecycle.ActionQuarantine, words{
		short: "Take a node out of service at once",
		long: `Takes the node out of service at once: it gets no new work. Running work continues.
The agent cordons the node if it can be reached. Use gpuaas node release to put the
node back into service.`,
		example: "  gpuaas node quarantine gpu-17 --reason \"ECC errors\"",
	}, &o, func(ctx context.Context, arg string) error {
		return runLifecycle(ctx, e, arg, verb{action: lifecycle.ActionQuarantine}, o)
	})
	o.addTimeout(c)
	return c
}
