package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeEnrollOptions struct {
	lifecycleOptions
	bundle, envFile string
}

func newNodeEnroll(e *env) *cobra.Command {
	var o nodeEnrollOptions
	c := newLifecycle(e, lifecycle.ActionEnroll, words{
		short: "Give a node its identity",
		long: `Requests the node's bootstrap bundle, which holds a one-time token. With --wait it
then waits until the node's agent polls with its new certificate. The bundle
is written to --bundle, or to ./HOST.bundle.json, readable by its owner only.
--env-file writes its variables too, as the agent and its installer read them.

With -o json or yaml and without --bundle the bundle is part of the object on
stdout instead, which is then printed before the waiting; the exit code tells
how that ended.`,
		example: `  gpuaas node enroll gpu-17
  gpuaas node enroll gpu-17 --bundle gpu-17.json --env-file gpu-17.env --no-wait
  gpuaas node enroll gpu-17 --no-wait -o json | jq .bootstrap_bundle`,
	}, &o.lifecycleOptions, func(ctx context.Context, arg string) error { return runNodeEnroll(ctx, e, arg, o) })
	o.addTimeout(c)
	o.waitsOnRequest(c)
	c.Flags().StringVar(&o.bundle, "bundle", "", "file to write the bundle to")
	c.Flags().StringVar(&o.envFile, "env-file", "", "file to write the bundle's variables to")
	return c
}

func runNodeEnroll(ctx context.Context, e *env, arg string, o nodeEnrollOptions) error {
	v := verb{action: lifecycle.ActionEnroll}
	inline := o.bundle == "" && e.machine()
	if inline && o.envFile != "" {
		return usagef("gpuaas node enroll", "--env-file with -o %s wants --bundle FILE too", e.output)
	}
	api, t, err := e.known(ctx, arg)
	if err != nil {
		return err
	}
	if o.dryRun {
		return e.printPlan(ctx, arg, t, v)
	}
	answer, err := e.enroll(ctx, api, t, o, inline)
	if err != nil {
		return t.inWords(err)
	}
	if inline {
		if err := e.printMachine(answer); err != nil {
			return err
		}
	}
	return e.finishBundle(ctx, t, answer, o.lifecycleOptions, inline)
}

// enroll starts the enrolment and, unless the bundle is to be inline, keeps it
// in its file. The token in it is shown nowhere.
func (e *env) enroll(ctx context.Context, api *adminAPI, t target, o nodeEnrollOptions, inline bool) (wire.LifecycleResponse, error) {
	request := wire.LifecycleRequest{Reason: o.reason}
	if inline {
		return api.act(ctx, t.id, lifecycle.ActionEnroll, request, o.key)
	}
	path, err := e.bundlePath(t, o.bundle)
	if err != nil {
		return wire.LifecycleResponse{}, err
	}
	file, err := newSecretFile(path)
	if err != nil {
		return wire.LifecycleResponse{}, err
	}
	defer file.discard()
	vars, err := newEnvFile(o.envFile)
	if err != nil {
		return wire.LifecycleResponse{}, err
	}
	defer vars.discard()
	answer, err := api.act(ctx, t.id, lifecycle.ActionEnroll, request, o.key)
	if err != nil {
		return answer, err
	}
	e.say("enroll %s: %s as operation %s", t.name(), answer.Operation.Status, answer.Operation.OperationID)
	if answer.BootstrapBundle == nil {
		return answer, schema.NewError(schema.KindInternal, "the admin API returned no bundle").
			WithReason("no_bundle").WithNext("run it again: gpuaas node enroll " + t.name())
	}
	if err := file.write(answer.BootstrapBundle); err != nil {
		return answer, err
	}
	e.say("bundle written to %s (mode 0600; it holds the enrollment token, good until %s)", path, answer.BootstrapBundle.ExpiresAt)
	if o.envFile == "" {
		return answer, nil
	}
	e.say("its variables written to %s (mode 0600)", o.envFile)
	return answer, vars.writeText(answer.BootstrapBundle.EnvFile() + answer.BootstrapBundle.Package.EnvFile())
}

// finishBundle waits if asked to, and prints how the operation stands. With
// its object on stdout already, since the agent needs the bundle first, it says
// so on stderr instead.
func (e *env) finishBundle(ctx context.Context, t target, answer wire.LifecycleResponse, o lifecycleOptions, shown bool) error {
	st := lifecycle.OperationStatus{Operation: answer.Operation, Node: t.ref()}
	if !o.waits() {
		e.say("when its agent is up, follow it with: %s", lifecycle.OpCommand("watch", answer.Operation.Action, t.name()))
		if shown {
			return nil
		}
		return e.finish(ctx, t, st, nil)
	}
	ctl, err := e.control(ctx)
	if err != nil {
		return err
	}
	st, err = e.follow(ctx, followRequest{target: t, operation: answer.Operation, control: ctl, limit: o.timeout})
	if !shown {
		return e.finish(ctx, t, st, err)
	}
	if err != nil {
		return err
	}
	e.say("%s", e.headline(t, st))
	return outcome(t, st.Operation)
}
