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
  gpuaas node reissue-enrollment --selector region=fra1,host=gpu-* --out-dir reissue
  gpuaas node reissue-enrollment --issuer "CN=gpuaas node CA g1" --out-dir reissue \
      --max-parallel 20 --no-wait --yes --reason "CA changed"`,
	}
	var c *cobra.Command
	c = lifecycleCommand(e, lifecycle.ActionReissueEnrollment, v, &o.lifecycleOptions, func(ctx context.Context, arg string) error {
		if err := o.check(c); err != nil {
			return err
		}
		if o.many() {
			return runNodeReissueMany(ctx, e, o)
		}
		return runBundle(ctx, e, arg, lifecycle.ActionReissueEnrollment, o.bundleOptions)
	})
	c.Use = "reissue-enrollment {NODE | --selector SELECTOR}"
	c.Args = func(c *cobra.Command, args []string) error {
		switch {
		case !o.many():
			return exactArgs("NODE")(c, args)
		case len(args) > 0:
			return usagef(c.CommandPath(), "specify NODE or --selector, not both")
		}
		return nil
	}
	addYes(c, &o.yes)
	f := c.Flags()
	f.StringVar(&o.bundle, "bundle", "", "file to write the recovery bundle to")
	f.StringArrayVarP(&o.selector, "selector", "l", nil, "reissue every node that matches")
	f.StringArrayVar(&o.issuer, "issuer", nil, "reissue every node whose certificate has this issuer")
	f.StringVar(&o.outDir, "out-dir", "", "directory for the bundles of --selector")
	f.IntVar(&o.maxParallel, "max-parallel", reissueParallel, "how many nodes of --selector to process at a time")
	return c
}

// many reports whether the reissue is of many nodes.
func (o *nodeReissueOptions) many() bool { return len(o.selector)+len(o.issuer) > 0 }

// check rejects flags that exclude each other.
func (o *nodeReissueOptions) check(c *cobra.Command) error {
	many := o.many()
	switch {
	case many && o.bundle != "":
		return usagef(c.CommandPath(), "--bundle is for one node: with --selector use --out-dir DIR")
	case many && o.key != "":
		return usagef(c.CommandPath(), "--idempotency-key is for one node")
	case many && o.outDir == "" && !o.dryRun:
		return usagef(c.CommandPath(), "missing --out-dir: the directory for the bundles")
	case !many && (o.outDir != "" || c.Flags().Changed("max-parallel")):
		return usagef(c.CommandPath(), "--out-dir and --max-parallel need --selector")
	case o.maxParallel < 1:
		return usagef(c.CommandPath(), "--max-parallel %d: must be at least 1", o.maxParallel)
	}
	return nil
}
