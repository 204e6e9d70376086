package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

type nodeReissueOptions struct {
	bundleOptions
	// The fields below are for a reissue of many nodes.
	selector    []string
	issuer      []string
	outDir      string
	maxParallel int
}

// reissueParallel is the default number of nodes that a reissue by selector processes
// at a time.
const reissueParallel = 4

func newNodeReissue(e *env) *cobra.Command {
	var o nodeReissueOptions
	v := verb{
		short: "Give a node a new identity", noWait: true,
		long: `Creates a new enrollment token for a known node: one that lost its files, uses an old
endpoint or CA, or has a locked identity. The node's state does not change, its earlier
tokens become void, and an operation that holds the node continues.

Prints one command on stdout. Run it as root on the node: it replaces the token in the
env file, moves the old certificate and key aside and restarts the agent. It contains
the token, so keep it secret. The reissue is complete when the node polls with its new
identity; --wait waits for that. --bundle writes the whole recovery bundle to a file
that only its owner can read. With -o json or yaml and without --bundle the bundle is
part of the object on stdout.

With --selector or --issuer it reissues every node that matches, --max-parallel at a
time, and writes one file for each into --out-dir: HOST.recovery.json, which contains
restart_command. The exit code is 1 if a node failed, else 5 if one did not finish.

` + selectorHelp,
		example: `  gpuaas node reissue-enrollment gpu-17 --no-wait | ssh root@gpu-17 sh
  gpuaas node reissue-enrollment gpu-17 --bundle gpu-17.recovery.json
  gpuaas node reissue-enrollment --selector 'region=fra1,host=gpu-*' --out-dir reissue
  gpuaas node reissue-enrollment --issuer "CN=gpuaas node CA g1" --out-dir reissue \
      --max-parallel 20 --no-wait --yes --reason "CA changed"`,
	}
	bulk := bulkFlags{noun: "node", selectors: []string{"selector", "issuer"},
		one: []string{"idempotency-key"}, many: []string{"out-dir", "max-parallel"}}
	var c *cobra.Command
	c = lifecycleCommand(e, lifecycle.ActionReissueEnrollment, v, &o.lifecycleOptions, func(ctx context.Context, arg string) error {
		switch {
		case !bulk.selected(c):
			return runBundle(ctx, e, arg, lifecycle.ActionReissueEnrollment, o.bundleOptions)
		case o.bundle != "":
			return usagef(c.CommandPath(), "--bundle is for one node: with --selector use --out-dir DIR")
		case o.outDir == "" && !o.dryRun:
			return usagef(c.CommandPath(), "missing --out-dir: the directory for the bundles")
		}
		return runNodeReissueMany(ctx, e, o)
	})
	c.Use = "reissue-enrollment {NODE | --selector SELECTOR}"
	c.Args = bulk.check
	addYes(c, &o.yes)
	f := c.Flags()
	f.StringVar(&o.bundle, "bundle", "", "file to write the recovery bundle to")
	f.StringArrayVarP(&o.selector, "selector", "l", nil, "reissue every node that matches")
	f.StringArrayVar(&o.issuer, "issuer", nil, "reissue every node whose certificate has this issuer")
	f.StringVar(&o.outDir, "out-dir", "", "directory for the bundles of --selector")
	f.IntVar(&o.maxParallel, "max-parallel", reissueParallel, "how many nodes of --selector to process at a time")
	return c
}
