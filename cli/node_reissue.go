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
	issuer      []string
	outDir      string
	maxParallel int
}

// reissueParallel is how many nodes a reissue by selector has under way.
const reissueParallel = 4

func newNodeReissue(e *env) *cobra.Command {
	var o nodeReissueOptions
	c := newLifecycle(e, lifecycle.ActionReissueEnrollment, words{
		short: "Give a node a new identity",
		long: `Gives a known node a new token: for a node that lost its files, points at an old
endpoint or CA, or has a locked identity. The node's state does not change, earlier
tokens become void, and an operation that holds the node continues.

Prints one command on stdout: run it as root on the node. It replaces the token in the
env file, moves stale certificate and key aside and restarts the agent. It contains the
token, so keep it secret. The reissue is complete when the node polls with its new
identity; --wait waits for that. --bundle writes the whole recovery bundle to a file
that only its owner can read. With -o json or yaml and without --bundle the bundle is
part of the object on stdout.

With --selector or --issuer it reissues every node that matches, --max-parallel at a
time, and writes one file for each into --out-dir: HOST.recovery.json, which contains
restart_command. The exit code is 1 when a node failed, else 5 when one did not finish.

-l selects by labels and by the properties region, sku, state, provider, class and
host, in kubectl's grammar: k=v, k!=v, k in (a,b), k notin (a,b), k, !k.`,
		example: `  gpuaas node reissue-enrollment gpu-17 --no-wait | ssh root@gpu-17 sh
  gpuaas node reissue-enrollment gpu-17 --bundle gpu-17.recovery.json
  gpuaas node reissue-enrollment --selector region=fra1,host=gpu-* --out-dir reissue
  gpuaas node reissue-enrollment --issuer "CN=gpuaas node CA g1" --out-dir reissue \
      --max-parallel 20 --no-wait --yes --reason "CA changed"`,
	}, &o.lifecycleOptions, nil)
	c.Use = "reissue-enrollment {NODE | --selector SELECTOR}"
	c.Args = func(c *cobra.Command, args []string) error {
		if o.many() {
			if len(args) > 0 {
				return usagef(c.CommandPath(), "give NODE or --selector, not both")
			}
			return nil
		}
		return exactArgs("NODE")(c, args)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := o.check(c); err != nil {
			return err
		}
		if o.many() {
			return runNodeReissueMany(c.Context(), e, o)
		}
		return runNodeReissue(c.Context(), e, args[0], o)
	}
	o.addTimeout(c)
	o.waitsOnRequest(c)
	o.addYes(c)
	f := c.Flags()
	f.StringVar(&o.bundle, "bundle", "", "file to write the recovery bundle to")
	f.StringArrayVarP(&o.selector, "selector", "l", nil, "reissue every node that matches")
	f.StringArrayVar(&o.issuer, "issuer", nil, "reissue every node whose certificate has this issuer")
	f.StringVar(&o.outDir, "out-dir", "", "directory for the bundles of --selector")
	f.IntVar(&o.maxParallel, "max-parallel", reissueParallel, "how many nodes of --selector are under way at a time")
	return c
}

// many reports whether the reissue is of many nodes.
func (o *nodeReissueOptions) many() bool { return len(o.selector)+len(o.issuer) > 0 }

// check refuses flags that do not go together.
func (o *nodeReissueOptions) check(c *cobra.Command) error {
	if err := o.lifecycleOptions.check(c); err != nil {
		return err
	}
	many := o.many()
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
	return e.finishBundle(ctx, t, answer, o.lifecycleOptions, shown)
}

// printReissue prints the one command, or the whole answer for machines unless
// it is in a file already. shown says that stdout has its object.
func (e *printer) printReissue(t target, answer wire.LifecycleResponse, o nodeReissueOptions) (shown bool, err error) {
	switch {
	case !e.machine():
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
	request := wire.LifecycleRequest{Reason: o.reason}
	keep := func(*wire.RecoveryBundle) error { return nil }
	if path != "" {
		file, err := newSecretFile(path)
		if err != nil {
			return wire.LifecycleResponse{}, err
		}
		defer file.discard()
		keep = func(b *wire.RecoveryBundle) error { return file.write(b) }
	}
	answer, err := api.act(ctx, t.id, lifecycle.ActionReissueEnrollment, request, o.key)
	if err != nil {
		return answer, err
	}
	if answer.RecoveryBundle == nil {
		return answer, schema.NewError(schema.KindInternal, "the admin API returned no recovery bundle").
			WithReason("no_bundle").WithNext(lifecycle.DecisionCommand(lifecycle.DecisionCancel, lifecycle.ActionReissueEnrollment, t.name(), ""))
	}
	return answer, keep(answer.RecoveryBundle)
}
