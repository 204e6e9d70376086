package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// verb is how one lifecycle action differs from the others on the command line.
type verb struct {
	short string
	// long defaults to the plan's description, example to the action with a reason.
	long, example string
	// confirm returns the consequence of the action, which the confirmation prompt
	// shows. Nil for an action that needs no confirmation.
	confirm func(lifecycle.Options) string
	// flags declares flags that only this action has.
	flags func(*cobra.Command, *lifecycleOptions)
	// noWait makes --no-wait the default: an operator must act on the node before
	// the operation can continue.
	noWait bool
	// make makes the command of an action that returns a bundle. Nil for the others.
	make func(*env, verb) *cobra.Command
}

func newNode(e *env) *cobra.Command {
	c := newGroup("node", "Manage nodes and their lifecycle", "Registers and shows nodes, and runs lifecycle operations on them.",
		newNodeRegister(e), newNodeList(e), newNodeShow(e), newNodeSet(e), newNodeScript(e))
	all := verbs()
	for _, p := range lifecycle.Operations() {
		if v := all[p.Action]; v.make != nil {
			c.AddCommand(v.make(e, v))
		} else {
			c.AddCommand(newLifecycle(e, p, v))
		}
	}
	return c
}

// newLifecycle makes the command that starts the operation of a plan.
func newLifecycle(e *env, p lifecycle.Plan, v verb) *cobra.Command {
	var o lifecycleOptions
	v.long = cmp.Or(v.long, p.Does)
	v.example = cmp.Or(v.example, fmt.Sprintf("  gpuaas node %s gpu-17\n  gpuaas node %[1]s gpu-17 --reason \"ECC errors, RMA-4411\"", p.Action))
	return lifecycleCommand(e, p.Action, v, &o, func(ctx context.Context, arg string) error { return runLifecycle(ctx, e, arg, p.Action, o) })
}

// lifecycleCommand makes the command of an action, which run runs with valid flags.
func lifecycleCommand(e *env, a lifecycle.Action, v verb, o *lifecycleOptions, run func(ctx context.Context, arg string) error) *cobra.Command {
	var c *cobra.Command
	c = e.command(string(a)+" NODE", v.short, v.long, v.example, func(ctx context.Context, arg string) error {
		if err := o.check(c); err != nil {
			return err
		}
		return run(ctx, arg)
	})
	f := c.Flags()
	f.BoolVar(&o.wait, "wait", !v.noWait, "wait until the operation ends or parks")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the operation is accepted")
	f.DurationVar(&o.timeout, "timeout", 0, "how long to wait; the operation keeps running (default: the time limits of its phases)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and its blockers; change nothing")
	f.StringVar(&o.reason, "reason", "", "reason, kept in the audit trail and shown with the operation")
	f.StringVar(&o.key, "idempotency-key", "", "repeat a request safely: the same key joins the operation it started")
	if v.flags != nil {
		v.flags(c, o)
	}
	if o.confirm = v.confirm; v.confirm != nil {
		addYes(c, &o.yes)
	}
	return c
}

// addYes adds --yes, for the commands that need confirmation.
func addYes(c *cobra.Command, yes *bool) {
	c.Flags().BoolVarP(yes, "yes", "y", false, "do not ask for confirmation; required without a terminal")
}

// addDeadline adds the time limit of a drain.
func addDeadline(c *cobra.Command, o *lifecycleOptions, prefix string) {
	c.Flags().DurationVar(&o.deadline, "deadline", lifecycle.DefaultDrainTimeout, prefix+"stop waiting for workloads after this time; workloads that still run park the drain")
}

// verbs returns the texts and flags of each action.
func verbs() map[lifecycle.Action]verb {
	return map[lifecycle.Action]verb{
		lifecycle.ActionEnroll:            enrollVerb(),
		lifecycle.ActionReissueEnrollment: reissueVerb(),
		lifecycle.ActionProvision: {
			short: "Make a node ready for work",
			long: `Acquires the machine from its provider, waits for the node's agent, collects facts,
probes the node's health and compares facts and health with the SKU. Then the node is
active. The provider "manual" adopts the host as it is. A machine that does not match
its registration parks the operation.`,
			example: `  gpuaas node provision gpu-17
  gpuaas node provision gpu-17 --dry-run
  gpuaas node provision gpu-17 --no-wait -o json`,
		},
		lifecycle.ActionQuarantine: {
			short: "Take a node out of service at once",
			long: `Takes the node out of service at once: it gets no new work. Running work continues.
The agent cordons the node if it can be reached. Use gpuaas node release to put the
node back into service.`,
		},
		lifecycle.ActionRelease:    {short: "End a quarantine"},
		lifecycle.ActionUncordon:   {short: "Lift the cordon of a node in service"},
		lifecycle.ActionReactivate: {short: "Put a retired or drained node back into service"},
		lifecycle.ActionDrain: {
			short: "End the workloads of a node",
			long: `Cordons the node, then ends its workloads within --deadline. If workloads still run
then, the operation parks and names them. Wait longer with gpuaas op extend, restore
the previous state with gpuaas op cancel, or kill the workloads with gpuaas op force.

With --cordon-only the node gets no new work, and its workloads continue.`,
			example: `  gpuaas node drain gpu-17 --deadline 30m --reason RMA-4411
  gpuaas node drain gpu-17 --cordon-only --yes
  gpuaas node drain gpu-17 --yes --no-wait --idempotency-key rma-4411 -o json`,
			confirm: func(o lifecycle.Options) string {
				if o.CordonOnly {
					return "it gets no new work until it is reactivated"
				}
				return "this ends the workloads that run on it"
			},
			flags: func(c *cobra.Command, o *lifecycleOptions) {
				addDeadline(c, o, "")
				c.Flags().BoolVar(&o.options.CordonOnly, "cordon-only", false, "stop after the cordon")
			},
		},
		lifecycle.ActionRetire: {
			short: "Take a node out of the pool, reversibly",
			long: `Takes the node out of the pool. It gets no work until gpuaas node reactivate; its agent
keeps polling and renewing its certificate. A node with workloads is refused
(node_in_use) unless --drain ends them first.`,
			example: `  gpuaas node retire gpu-17
  gpuaas node retire gpu-17 --drain --deadline 30m --yes --reason "end of lease"`,
			confirm: func(o lifecycle.Options) string {
				if o.Drain {
					return "this ends the workloads that run on it and takes it out of the pool"
				}
				return "it gets no work until it is reactivated"
			},
			flags: func(c *cobra.Command, o *lifecycleOptions) {
				c.Flags().BoolVar(&o.options.Drain, "drain", false, "end the node's workloads first")
				addDeadline(c, o, "with --drain: ")
			},
		},
		lifecycle.ActionRemove: {
			short: "Remove a retired node permanently",
			long: `Deletes what the provider created for the node, revokes its identity permanently and
voids its tokens. The record of the node is kept. The host can only be registered as a
new node. Only a retired node can be removed.`,
			example: "  gpuaas node remove gpu-17\n  gpuaas node remove gpu-17 --yes --reason scrapped",
			confirm: func(lifecycle.Options) string {
				return "this is final: its machine is released and its identity revoked permanently"
			},
		},
	}
}

// runLifecycle starts the operation and, if requested, waits for its end.
func runLifecycle(ctx context.Context, e *env, arg string, a lifecycle.Action, o lifecycleOptions) error {
	ctl, err := e.control()
	if o.dryRun { // only the admin API has the node's state
		ctl, err = e.apiControl(), nil
	}
	if err != nil {
		return err
	}
	t, err := ctl.find(ctx, arg)
	if err != nil {
		return err
	}
	if o.dryRun {
		return e.printPlan(*t.view, a, o.options)
	}
	if o.confirm != nil {
		what := string(a) + " " + t.name() + ": " + o.confirm(o.options)
		if err := e.confirm(ctx, "gpuaas node "+string(a), what, o.yes); err != nil {
			return err
		}
	}
	op, err := ctl.start(ctx, t, a, o)
	if err != nil {
		if ctx.Err() != nil {
			e.message("interrupted while the operation was started: it may have been accepted; see: gpuaas op show %s", t.name())
		}
		return t.inWords(err)
	}
	if !o.waits() {
		return e.finish(ctx, t, lifecycle.OperationStatus{Operation: op, Node: t.ref()}, nil)
	}
	e.message("%s %s: %s as operation %s", a, t.name(), op.Status, op.OperationID)
	st, err := e.follow(ctx, followRequest{target: t, operation: op, options: o.options, control: ctl, limit: o.timeout})
	return e.finish(ctx, t, st, err)
}
