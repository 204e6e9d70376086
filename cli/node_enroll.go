package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// bundleOptions are the flags of the actions that issue a bundle.
type bundleOptions struct {
	lifecycleOptions
	bundle, envFile string
}

func enrollVerb() verb {
	return verb{
		short: "Give a node its identity",
		long: `Starts the enrollment of a node and writes its bootstrap bundle, which contains a
one-time token, to --bundle or to ./HOST.bundle.json. Only the owner can read the file.
--env-file also writes the bundle's variables in the form that the agent and its
installer read. With --wait the command then waits until the node's agent polls with
its new certificate.

With -o json or yaml and without --bundle, the bundle is part of the object on stdout.
The object is printed before the wait; the exit code reports how the operation ended.`,
		example: `  gpuaas node enroll gpu-17
  gpuaas node enroll gpu-17 --bundle gpu-17.json --env-file gpu-17.env --no-wait
  gpuaas node enroll gpu-17 --no-wait -o json | jq .bootstrap_bundle`,
		noWait: true, make: newNodeEnroll,
	}
}

func newNodeEnroll(e *env, v verb) *cobra.Command {
	var o bundleOptions
	c := lifecycleCommand(e, lifecycle.ActionEnroll, v, &o.lifecycleOptions,
		func(ctx context.Context, arg string) error { return runNodeEnroll(ctx, e, arg, o) })
	c.Flags().StringVar(&o.bundle, "bundle", "", "file to write the bundle to")
	c.Flags().StringVar(&o.envFile, "env-file", "", "file to write the bundle's variables to")
	return c
}

func runNodeEnroll(ctx context.Context, e *env, arg string, o bundleOptions) error {
	inline := o.bundle == "" && e.machine()
	if inline && o.envFile != "" {
		return usagef("gpuaas node enroll", "--env-file with -o %s needs --bundle FILE too", e.output)
	}
	ctl := e.apiControl()
	t, err := ctl.find(ctx, arg)
	if err != nil {
		return err
	}
	if o.dryRun {
		return e.printPlan(*t.view, lifecycle.ActionEnroll, o.options)
	}
	if o.bundle == "" && !inline {
		if o.bundle, err = fileOf(t, e.dir, ".bundle.json", "--bundle FILE"); err != nil {
			return err
		}
	}
	answer, err := issue(ctx, ctl, t, lifecycle.ActionEnroll, o)
	if err != nil {
		return t.inWords(err)
	}
	if inline {
		if err := e.printMachine(answer); err != nil {
			return err
		}
	} else {
		e.message("enroll %s: %s as operation %s", t.name(), answer.Operation.Status, answer.Operation.OperationID)
		e.message("bundle written to %s (mode 0600; it contains the enrollment token, valid until %s)", o.bundle, answer.BootstrapBundle.ExpiresAt)
	}
	if o.envFile != "" {
		e.message("its variables written to %s (mode 0600)", o.envFile)
	}
	return e.finishBundle(ctx, ctl, t, answer, o.lifecycleOptions, inline)
}

// issue starts an action that issues a bundle. It keeps the bundle and its variables in
// the files of the options; an empty path is no file.
func issue(ctx context.Context, ctl apiControl, t target, a lifecycle.Action, o bundleOptions) (answer wire.LifecycleResponse, err error) {
	file, err := newSecretFile(o.bundle)
	if err != nil {
		return answer, err
	}
	defer file.discard()
	vars, err := newSecretFile(o.envFile)
	if err != nil {
		return answer, err
	}
	defer vars.discard()
	answer, err = act(ctx, ctl.Client, t.id, a, wire.LifecycleRequest{Reason: o.reason}, o.key)
	if err != nil {
		return answer, err
	}
	switch b, r := answer.BootstrapBundle, answer.RecoveryBundle; {
	case a == lifecycle.ActionEnroll && b != nil:
		return answer, errors.Join(file.writeJSON(b), vars.write(b.EnvFile()+b.Package.EnvFile()))
	case a == lifecycle.ActionReissueEnrollment && r != nil:
		return answer, file.writeJSON(r)
	}
	return answer, schema.NewError(schema.KindInternal, "the admin API returned no bundle").
		WithReason("no_bundle").WithNext(lifecycle.DecisionCommand(lifecycle.DecisionCancel, a, t.name(), ""))
}

// finishBundle waits if requested, and prints the status of the operation. shown
// reports that stdout has the object already: the status is then a message.
func (e *env) finishBundle(ctx context.Context, ctl apiControl, t target, answer wire.LifecycleResponse, o lifecycleOptions, shown bool) error {
	st := lifecycle.OperationStatus{Operation: answer.Operation, Node: t.ref()}
	var err error
	if o.waits() {
		st, err = e.follow(ctx, followRequest{target: t, operation: answer.Operation, control: ctl, limit: o.timeout})
	} else {
		e.message("when its agent runs, follow it with: %s", lifecycle.OpCommand("watch", answer.Operation.Action, t.name()))
	}
	if !shown {
		return e.finish(ctx, t, st, err)
	}
	if err != nil || !o.waits() {
		return err
	}
	e.message("%s", headline(t, st))
	return outcome(t, st.Operation)
}
