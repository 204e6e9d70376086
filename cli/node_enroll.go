package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// bundleOptions are the flags of the actions that issue a bundle.
type bundleOptions struct {
	lifecycleOptions
	bundle, envFile string
}

func newNodeEnroll(e *env) *cobra.Command {
	var o bundleOptions
	v := verb{
		short: "Give a node its identity", noWait: true,
		long: `Starts the enrollment of a node and writes its bootstrap bundle, which contains a
one-time token, to --bundle or to ./HOST.bundle.json. Only the owner can read the file.
--env-file also writes the bundle's variables in the form that the agent and its
installer read. --wait waits until the node's agent polls with its new certificate.

With -o json or yaml and without --bundle, the bundle is part of the object on stdout.
The object is printed before the wait; the exit code reports how the operation ended.`,
		example: `  gpuaas node enroll gpu-17
  gpuaas node enroll gpu-17 --bundle gpu-17.json --env-file gpu-17.env --no-wait
  gpuaas node enroll gpu-17 --no-wait -o json | jq .bootstrap_bundle`,
	}
	c := lifecycleCommand(e, lifecycle.ActionEnroll, v, &o.lifecycleOptions,
		func(ctx context.Context, arg string) error { return runBundle(ctx, e, arg, lifecycle.ActionEnroll, o) })
	c.Flags().StringVar(&o.bundle, "bundle", "", "file to write the bundle to")
	c.Flags().StringVar(&o.envFile, "env-file", "", "file to write the bundle's variables to")
	return c
}

// runBundle starts an action that issues a bundle. An enrollment writes the bundle to a
// file or to stdout. A reissue prints the restart command unless the output is for
// programs.
func runBundle(ctx context.Context, e *env, arg string, a lifecycle.Action, o bundleOptions) error {
	inline := o.bundle == "" && e.machine()
	if inline && o.envFile != "" {
		return usagef("gpuaas node "+string(a), "--env-file with -o %s needs --bundle FILE too", e.output)
	}
	ctl := e.apiControl()
	t, done, err := e.prepare(ctx, ctl, arg, a, o.lifecycleOptions)
	if done {
		return err
	}
	if a == lifecycle.ActionEnroll && o.bundle == "" && !inline {
		if o.bundle, err = fileOf(t, e.dir, ".bundle.json", "--bundle FILE"); err != nil {
			return err
		}
	}
	response, err := issue(ctx, ctl, t, a, o)
	if err != nil {
		return e.startError(ctx, t, err)
	}
	expires := bundleOf(response).ExpiresAt
	e.message("%s %s: %s as operation %s", a, t.name(), response.Operation.Status, response.Operation.OperationID)
	if response.Note != "" {
		e.message("note: %s", response.Note)
	}
	if o.bundle != "" {
		e.message("bundle written to %s (mode 0600; it contains the enrollment token, valid until %s)", o.bundle, expires)
	}
	if o.envFile != "" {
		e.message("its variables written to %s (mode 0600)", o.envFile)
	}
	command := a == lifecycle.ActionReissueEnrollment && !e.machine()
	switch {
	case command:
		e.message("run this on %s as root; it contains the token, valid until %s:", t.name(), expires)
		_, err = fmt.Fprintln(e.stdout, response.RecoveryBundle.RestartCommand)
	case inline:
		err = e.printMachine(response)
	}
	if err != nil {
		return err
	}
	return e.finishBundle(ctx, ctl, t, response, o.lifecycleOptions, command || inline)
}

// bundleOf is the bundle that an action issued, nil when there is none.
func bundleOf(response wire.LifecycleResponse) *trust.BootstrapBundle {
	if r := response.RecoveryBundle; r != nil {
		return &r.BootstrapBundle
	}
	return response.BootstrapBundle
}

// issue starts an action that issues a bundle. It keeps the bundle and its variables in
// the files of the options; an empty path is no file.
func issue(ctx context.Context, ctl apiControl, t target, a lifecycle.Action, o bundleOptions) (response wire.LifecycleResponse, err error) {
	file, err := newSecretFile(o.bundle)
	if err != nil {
		return response, err
	}
	defer file.discard()
	vars, err := newSecretFile(o.envFile)
	if err != nil {
		return response, err
	}
	defer vars.discard()
	response, err = act(ctx, ctl.Client, t.id, a, wire.LifecycleRequest{Reason: o.reason, StartWithinSeconds: int64(o.startWithin / time.Second)}, o.key)
	if err != nil {
		return response, err
	}
	b, op := bundleOf(response), response.Operation
	if b == nil && op.Status.Ended() { // a repeat
		return response, schema.NewError(schema.KindTokenConsumed, "operation %s of this idempotency key is %s: its bundle is no longer available", op.OperationID, op.Status).
			WithReason(lifecycle.ReasonOperationOver).WithNext("run the command again with a new --idempotency-key")
	}
	if b == nil {
		return response, schema.NewError(schema.KindInternal, "the admin API returned no bundle").
			WithReason("no_bundle").WithNext(lifecycle.DecisionCommand(lifecycle.DecisionCancel, a, t.name(), op.OperationID))
	}
	if response.RecoveryBundle != nil {
		return response, file.writeJSON(response.RecoveryBundle)
	}
	return response, errors.Join(file.writeJSON(b), vars.write(b.EnvFile()+b.Package.EnvFile()))
}

// finishBundle waits if requested, and prints the status of the operation. shown
// reports that stdout has the object already: the status is then a message.
func (e *env) finishBundle(ctx context.Context, ctl apiControl, t target, response wire.LifecycleResponse, o lifecycleOptions, shown bool) error {
	st := lifecycle.OperationStatus{Operation: response.Operation, Node: t.ref()}
	var err error
	if o.waits() {
		st, err = e.follow(ctx, followRequest{target: t, operation: response.Operation, control: ctl, limit: o.timeout})
	} else {
		e.message("when its agent runs, follow it with: %s", t.op("watch", response.Operation.Action))
	}
	if !shown {
		return e.finish(ctx, t, st, err)
	}
	if err != nil || !o.waits() {
		return err
	}
	e.message("%s", headline(t, st))
	return outcome(t, st.Operation, e.clock.now())
}
