package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// verb is how one lifecycle action differs from the others on the command line.
type verb struct {
	short string
	// long defaults to the plan's description, example to the action with a reason.
	long, example string
	// reason is the one of the default example.
	reason string
	// confirm returns the consequence of the action, which the confirmation prompt
	// shows. Nil for an action that needs no confirmation.
	confirm func(lifecycle.Options) string
	// flags declares flags that only this action has.
	flags func(*env, *cobra.Command, *lifecycleOptions)
	// noWait makes --no-wait the default: an operator must act on the node before
	// the operation can continue.
	noWait bool
}

func newNode(e *env) *cobra.Command {
	c := newGroup("node", "Manage nodes and their lifecycle", "Registers and shows nodes, and runs lifecycle operations on them.",
		newNodeRegister(e), newNodeCreate(e), newNodeList(e), newNodeShow(e), newNodeHistory(e), newNodeSignals(e), newNodeDrift(e), newNodeSet(e), newNodeScript(e), newNodeRehydrate(e), newNodeRunbook(e),
		newNodeLock(e), newNodeUnlock(e), newNodeRMA(e))
	c.Example = "  gpuaas node list\n  gpuaas node register gpu-17 --sku h100 --region fra1\n  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh\n" +
		"  gpuaas node drain gpu-17 --deadline 30m --reason RMA-4411"
	all := verbs()
	for _, p := range lifecycle.Operations() {
		switch p.Action {
		case lifecycle.ActionEnroll:
			c.AddCommand(newNodeEnroll(e))
		case lifecycle.ActionReissueEnrollment:
			c.AddCommand(newNodeReissue(e))
		default:
			c.AddCommand(newLifecycle(e, p, all[p.Action]))
		}
	}
	return c
}

// newLifecycle makes the command that starts the operation of a plan.
func newLifecycle(e *env, p lifecycle.Plan, v verb) *cobra.Command {
	var o lifecycleOptions
	v.long = cmp.Or(v.long, p.Does)
	v.example = cmp.Or(v.example, fmt.Sprintf("  gpuaas node %s gpu-17\n  gpuaas node %[1]s gpu-17 --reason %q", p.Action, cmp.Or(v.reason, "ECC errors, RMA-4411")))
	c := lifecycleCommand(e, p.Action, v, &o, func(ctx context.Context, arg string) error { return runLifecycle(ctx, e, arg, p.Action, o) })
	if p.Action != lifecycle.ActionUpgradeAgent { // the admin API has the releases
		directly(c)
	}
	return c
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
	noWaitUsage := "return as soon as the operation is accepted"
	if v.noWait {
		noWaitUsage += " (the default of this command)"
	}
	f := c.Flags()
	f.BoolVar(&o.wait, "wait", !v.noWait, "wait until the operation ends or parks")
	f.BoolVar(&o.noWait, "no-wait", false, noWaitUsage)
	addTimeout(c, &o.timeout, "longest `DURATION` of the wait; the operation continues after it (default: the time limits of its phases)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and its blockers; change nothing")
	f.StringVar(&o.reason, "reason", "", "reason, kept in the audit trail and shown with the operation")
	f.DurationVar(&o.startWithin, "start-within", 0, "reject the operation if it cannot begin within `DURATION`, for example in an outage (default "+lifecycle.Span(lifecycle.StartWithin)+")")
	f.StringVar(&o.key, "idempotency-key", "", "repeat a request safely: the same key returns the operation that it started")
	if v.flags != nil {
		v.flags(e, c, o)
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
	c.Flags().DurationVar(&o.deadline, "deadline", lifecycle.DefaultDrainTimeout, prefix+"time limit for the workloads to stop; the operation parks if one is still running")
}

// addForce adds --force, which skips the check of what runs on the node.
func addForce(c *cobra.Command, o *lifecycleOptions, verb string) {
	c.Flags().BoolVar(&o.options.Force, "force", false, verb+" the node although it runs workloads, or does not say which; requires --reason")
}

// verbs returns the texts and flags of each action.
func verbs() map[lifecycle.Action]verb {
	const repaired = "repaired, RMA-4411"
	return map[lifecycle.Action]verb{
		lifecycle.ActionProvision: provisionVerb(),
		lifecycle.ActionQuarantine: {
			short: "Take a node out of service at once",
			long: `Takes the node out of service at once: it gets no new work. Running workloads continue.
The agent cordons the node if it can be reached. Use gpuaas node release to put the
node back into service.`,
		},
		lifecycle.ActionRelease:  {short: "End the quarantine of a node", reason: repaired},
		lifecycle.ActionUncordon: {short: "Lift the cordon of an active node", reason: repaired},
		lifecycle.ActionReactivate: {
			short: "Put a retired or drained node back into service",
			long: `Probes the node's health, uncordons it and returns it to service.

With --new-identity the agent first enrolls again with new keys. The node's certificate,
recovery key and tokens from before are void, and so is each copy of them. Use it before
you give the machine to another user.`,
			example: "  gpuaas node reactivate gpu-17 --reason \"" + repaired + "\"\n  gpuaas node reactivate gpu-17 --new-identity",
			flags: func(_ *env, c *cobra.Command, o *lifecycleOptions) {
				c.Flags().BoolVar(&o.options.NewIdentity, "new-identity", false, "give the node new keys first; copies of the previous ones are void")
			},
		},
		lifecycle.ActionDrain: {
			short: "Drain a node of its workloads",
			long: `Cordons the node, then stops its workloads before --deadline. If workloads are still
running then, the operation parks and names them. Give them more time with gpuaas op
extend, undo the drain with gpuaas op cancel, or kill them with gpuaas op force.

With --cordon-only the node gets no new work, and its workloads continue, until gpuaas
node uncordon.

A drain also parks if the agent does not know what runs on the node, because no workload
driver is configured, and if processes use the GPUs that no workload driver stops. Force
continues in spite of them.`,
			example: `  gpuaas node drain gpu-17 --deadline 30m --reason RMA-4411
  gpuaas node drain gpu-17 --cordon-only --yes
  gpuaas node drain gpu-17 --yes --no-wait --idempotency-key rma-4411 -o json`,
			confirm: func(o lifecycle.Options) string {
				if o.CordonOnly {
					return "it gets no new work until it is uncordoned"
				}
				return "this stops the workloads that run on it"
			},
			flags: func(_ *env, c *cobra.Command, o *lifecycleOptions) {
				addDeadline(c, o, "")
				c.Flags().BoolVar(&o.options.CordonOnly, "cordon-only", false, "stop after the cordon")
				c.SuggestFor = []string{"cordon"}
			},
		},
		lifecycle.ActionUpgradeAgent: upgradeVerb(),
		lifecycle.ActionRetire:       retireVerb(),
		lifecycle.ActionTerminate:    terminateVerb(),
		lifecycle.ActionRecover:      recoverVerb(),
		lifecycle.ActionRemove:       removeVerb(),
	}
}

func retireVerb() verb {
	return verb{
		short: "Take a node out of the pool, reversibly",
		long: `Takes the node out of the pool: it gets no work until gpuaas node reactivate. Its agent
keeps polling and renewing its certificate. A node with workloads is refused
(node_in_use) unless --drain stops them first.

The agent cordons the node and then lists its workloads. If it finds some, or does not
respond, the operation parks. --force retires the node without that check, for example
because the machine is gone.`,
		example: `  gpuaas node retire gpu-17
  gpuaas node retire gpu-17 --drain --deadline 30m --yes --reason "end of lease"`,
		confirm: func(o lifecycle.Options) string {
			if o.Drain {
				return "this stops the workloads that run on it and takes it out of the pool"
			}
			if o.Force {
				return "workloads that run on it are not stopped, and it gets no work until it is reactivated"
			}
			return "it gets no work until it is reactivated"
		},
		flags: func(_ *env, c *cobra.Command, o *lifecycleOptions) {
			c.Flags().BoolVar(&o.options.Drain, "drain", false, "drain the node first")
			addForce(c, o, "retire")
			addDeadline(c, o, "with --drain: ")
		},
	}
}

func recoverVerb() verb {
	return verb{
		short: "Repair a node: reset its GPUs, reboot it, replace its machine, or quarantine it",
		long: `Repairs the node. It is quarantined, cordoned and drained, and then the rungs of the repair
are climbed until the node passes its tests: reset_gpu resets the GPUs, reboot restarts the
node through its agent or else through its provider, replace deletes the machine and creates
another one, and quarantine leaves the node out of service with the evidence for its vendor
(gpuaas node rma). The default is reboot, then quarantine. A node that is repaired returns to
service. The rung replace requires the role admin, and a provider that creates machines.

A rung that fails is followed by the next one. If none follows, the operation parks. With
--approve the operation parks before a rung until a person approves it with gpuaas op
retry, or refuses it with gpuaas op skip.

Workloads are drained first. The workloads of a node whose agent is silent cannot be
drained: a reboot by the provider ends them.`,
		example: `  gpuaas node recover gpu-17 --dry-run
  gpuaas node recover gpu-17 --yes --reason "XID 79"
  gpuaas node recover gpu-17 --rung reset_gpu,reboot --approve reboot --yes`,
		confirm: func(o lifecycle.Options) string {
			names := make([]string, 0, len(lifecycle.Rungs(o.Recovery)))
			for _, r := range lifecycle.Rungs(o.Recovery) {
				names = append(names, string(r))
			}
			return "this stops the workloads that run on it, and performs these rungs until it passes its tests: " + strings.Join(names, ", ")
		},
		flags: func(_ *env, c *cobra.Command, o *lifecycleOptions) {
			addDeadline(c, o, "")
			f := c.Flags()
			f.Var(newRungs(&o.options.Recovery.Rungs), "rung", "the `RUNGS` to climb, in this order: reset_gpu, reboot, replace, quarantine (default reboot,quarantine)")
			f.Var(newRungs(&o.options.Recovery.Approve), "approve", "park before these `RUNGS` until a person approves")
			f.StringSliceVar(&o.options.Recovery.GPUs, "gpu", nil, "reset only the GPUs with these `UUIDS`")
			f.DurationVar(&o.rebootWait, "reboot-wait", 0, "how long a reboot may take (default 40m with GPUs, and 10m without)")
		},
	}
}

// rungs is a flag with a list of rungs.
type rungs struct{ to *[]recovery.Rung }

func newRungs(to *[]recovery.Rung) *rungs { return &rungs{to} }

// String implements pflag.Value.
func (r *rungs) String() string { return "" }

// Type implements pflag.Value.
func (r *rungs) Type() string { return "rungs" }

// Set implements pflag.Value. A repeated flag adds rungs.
func (r *rungs) Set(s string) error {
	for name := range strings.SplitSeq(s, ",") {
		*r.to = append(*r.to, recovery.Rung(strings.TrimSpace(name)))
	}
	return nil
}

func upgradeVerb() verb {
	return verb{
		short: "Upgrade the agent of a node to a signed release",
		long: `Sends a release of the agent to the node. The agent downloads and verifies it, starts it,
and keeps it after its first successful poll. If the release crashes or makes no
successful poll, the previous agent runs again, and the operation parks
(upgrade_rolled_back). Workloads continue.

The release for the node's architecture must be in the folder GPUAAS_AGENT_RELEASES of
gpuaas-api, and one of the release keys in the node's env file must have signed it (gpuaas
admin sign-agent). A release that is older than the agent is refused without --downgrade.`,
		example: "  gpuaas node upgrade-agent gpu-17 --version v1.4.0\n  gpuaas node upgrade-agent gpu-17 --version v1.3.2 --downgrade --reason \"v1.4.0 leaks memory\"",
		flags: func(_ *env, c *cobra.Command, o *lifecycleOptions) {
			c.Flags().StringVar(&o.options.AgentVersion, "version", "", "`VERSION` of the release (required)")
			c.Flags().BoolVar(&o.options.Downgrade, "downgrade", false, "accept a release that is older than the agent")
		},
	}
}

func terminateVerb() verb {
	return verb{
		short: "Delete the machine of a node and keep the node",
		long: `Deletes the machine that the provider created for the node, with its disks, and voids the
node's identity. Workloads are not drained: run gpuaas node drain before if they must end
in order. A node whose last heartbeat listed workloads is refused (node_in_use) without
--force.

The node is then registered again. gpuaas node provision gives it another machine, and its
history and audit trail continue. A machine that the provider did not create cannot be
terminated: use gpuaas node retire.

Canceling asks the provider for the machine. If it still exists, the node returns to its
previous state.`,
		example: "  gpuaas node terminate gpu-17\n  gpuaas node terminate gpu-17 --dry-run\n  gpuaas node terminate gpu-17 --force --yes --reason \"drain is stuck, RMA-4411\"",
		flags:   func(_ *env, c *cobra.Command, o *lifecycleOptions) { addForce(c, o, "terminate") },
		confirm: func(lifecycle.Options) string {
			return "this deletes its machine and everything on it, and ends the workloads that run there; the node is kept"
		},
	}
}

func removeVerb() verb {
	return verb{
		short: "Remove a node permanently",
		long: `Deletes what the provider created for the node, revokes its identity permanently and
voids its tokens. The record of the node is kept. The host can only be registered as a
new node. Only a node that is retired or has never enrolled can be removed. A node whose
last heartbeat listed workloads is refused (node_in_use) without --force.`,
		example: "  gpuaas node remove gpu-17\n  gpuaas node remove gpu-17 --yes --reason scrapped\n  gpuaas node remove gpu-17 --force --yes --reason \"machine lost\"",
		flags:   func(_ *env, c *cobra.Command, o *lifecycleOptions) { addForce(c, o, "remove") },
		confirm: func(lifecycle.Options) string {
			return "this is final: its machine is released and its identity revoked permanently"
		},
	}
}
