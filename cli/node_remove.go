package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newNodeRemove(e *env) *cobra.Command {
	var o lifecycleOptions
	c := newLifecycle(e, lifecycle.ActionRemove, words{
		short: "Remove a retired node for good",
		long: `Gives back what the node's ledger lists, denies its identity for ever and voids
its tokens. The row stays as a tombstone; the host can only come back as a new
node. Only a retired node can be removed.`,
		example: "  gpuaas node remove gpu-17\n  gpuaas node remove gpu-17 --yes --reason scrapped",
	}, &o, func(ctx context.Context, arg string) error {
		return runLifecycle(ctx, e, arg, verb{action: lifecycle.ActionRemove,
			consequence: "this is final: its machine is given back and its identity denied for ever"}, o)
	})
	o.addYes(c)
	o.addTimeout(c)
	return c
}
