package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeReissueOptions struct {
	lifecycleOptions
	bundle string
	// What follows is for many nodes at once.
	selector    []string
	outDir      string
	maxParallel int
}

// reissueParallel is how many nodes a reissue by selector has under way.
const reissueParallel = 4

func newNodeReissue(e *env) *cobra.Command {
	var o nodeReissueOptions
	c := newLifecycle(e, lifecycle.ActionReissueEnrollment, words{
		short: "Give a node a new identity",
		long: `Gives a known node a new token, for one that lost its files, that an endpoint or the
CA left behind, or whose identity is locked. The node's state stays as it is, what
was handed out before is void, and whatever operation holds the node goes on.

Prints one command on stdout: run it as root on the node. It replaces the env file's
token, moves stale certificate and key aside and restarts the agent. It holds the
token, so keep it as one. The reissue is done when the node polls with its new
identity, and waits until then; --bundle keeps all of the recovery bundle in a file
that its owner only can read. With -o json or yaml and without --bundle the bundle
is part of the object on stdout.

With --selector it reissues every node that matches, --max-parallel at a time, and
writes one file for each into --out-dir: HOST.recovery.json, with restart_command in
it. While it waits a node counts until it polls again; without, until its file is
written. The exit code is 1 when a node failed, else 5 when one is still waited for.

Keys of a selector: region, sku, state, issuer (of the node's certificate, whole) and
host (* and ? match). KEY!=VALUE is the opposite; all given must match.`,
		example: `  gpuaas node reissue-enrollment gpu-17 --no-wait | ssh root@gpu-17 sh
  gpuaas node reissue-enrollment gpu-17 --bundle gpu-17.recovery.json
  gpuaas node reissue-enrollment --selector region=fra1,host=gpu-* --out-dir reissue
  gpuaas node reissue-enrollment --selector "issuer=CN=gpuaas node CA g1" --out-dir reissue \
      --max-parallel 20 --no-wait --yes --reason "CA changed"`,
	}, &o.lifecycleOptions, nil)
	c.Use = "reissue-enrollment {NODE | --selector KEY=VALUE[,...]}"
	c.Args = func(c *cobra.Command, args []string) error {
		if len(o.selector) > 0 {
			return noArgs()(c, args)
		}
		return exactArgs("NODE")(c, args)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := o.check(c); err != nil {
			return err
		}
		if len(o.selector) > 0 {
			return runNodeReissueMany(c.Context(), e, o)
		}
		return runNodeReissue(c.Context(), e, args[0], o)
	}
	o.addTimeout(c)
	o.addYes(c)
	f := c.Flags()
	f.StringVar(&o.bundle, "bundle", "", "file to write the recovery bundle to")
	f.StringArrayVar(&o.selector, "selector", nil, "reissue every node that matches KEY=VALUE[,KEY=VALUE...]")
	f.StringVar(&o.outDir, "out-dir", "", "directory for the bundles of --selector")
	f.IntVar(&o.maxParallel, "max-parallel", reissueParallel, "how many nodes of --selector are under way at a time")
	return c
}

// check refuses flags that do not go together.
func (o *nodeReissueOptions) check(c *cobra.Command) error {
	if err := o.lifecycleOptions.check(c); err != nil {
		return err
	}
	many := len(o.selector) > 0
	switch {
	case many && o.bundle != "":
		return usagef(c.CommandPath(), "--bundle is for one node: with --selector give --out-dir DIR")
	case many && o.key != "":
		return usagef(c.CommandPath(), "--idempotency-key is for one node")
	case many && o.outDir == "" && !o.dryRun:
		return usagef(c.CommandPath(), "missing --out-dir: say where the bundles go")
	case !many && (o.outDir != "" || c.Flags().Changed("max-parallel")):
		return usagef(c.CommandPath(), "--out-dir and --max-parallel go with --selector")
	case o.maxParallel < 1:
		return usagef(c.CommandPath(), "--max-parallel %d: want at least 1", o.maxParallel)
	}
	return nil
}

func runNodeReissue(ctx context.Context, e *env, arg string, o nodeReissueOptions) error {
	api, t, err := e.known(ctx, arg)
	if err != nil {
		return err
	}
	if o.dryRun {
		return e.printPlan(ctx, arg, t, verb{action: lifecycle.ActionReissueEnrollment})
	}
	answer, err := e.reissue(ctx, api, t, o, o.bundle)
	if err != nil {
		return t.inWords(err)
	}
	e.say("reissue-enrollment %s: %s as operation %s", t.name(), answer.Operation.Status, answer.Operation.OperationID)
	if o.bundle != "" {
		e.say("recovery bundle written to %s (mode 0600; it holds the token, good until %s)", o.bundle, answer.RecoveryBundle.ExpiresAt)
	}
	shown, err := e.printReissue(t, answer, o)
	if err != nil {
		return err
	}
	return e.finishHandover(ctx, t, answer, o.lifecycleOptions, shown)
}

// printReissue prints the one command, or the whole answer for machines unless
// it is in a file already. shown says that stdout has its object.
func (e *env) printReissue(t target, answer wire.LifecycleResponse, o nodeReissueOptions) (shown bool, err error) {
	switch {
	case e.flags.output == formatTable:
		e.say("run this on %s as root; it holds the token, good until %s:", t.name(), answer.RecoveryBundle.ExpiresAt)
		_, err = fmt.Fprintln(e.stdout, answer.RecoveryBundle.RestartCommand)
		return true, err
	case o.bundle == "":
		return true, e.printMachine(answer)
	}
	return false, nil
}

// reissue asks for the reissue and keeps its bundle in path, when there is one.
func (e *env) reissue(ctx context.Context, api *adminAPI, t target, o nodeReissueOptions, path string) (wire.LifecycleResponse, error) {
	request := wire.LifecycleRequest{Reason: o.reason, IdempotencyKey: o.key}
	keep := func(*wire.RecoveryBundle) error { return nil }
	if path != "" {
		file, err := newSecretFile(path)
		if err != nil {
			return wire.LifecycleResponse{}, err
		}
		defer file.discard()
		keep = func(b *wire.RecoveryBundle) error { return file.write(b) }
	}
	answer, err := api.reissue(ctx, t.id, request)
	if err != nil {
		return answer, err
	}
	if answer.RecoveryBundle == nil {
		return answer, schema.NewError(schema.KindInternal, "the admin API handed out no recovery bundle").
			WithReason("no_bundle").WithNext(lifecycle.OpCommand("cancel", lifecycle.ActionReissueEnrollment, t.name()))
	}
	return answer, keep(answer.RecoveryBundle)
}
