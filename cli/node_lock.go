package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// lockVerb is how gpuaas node lock and gpuaas node unlock differ.
type lockVerb struct {
	name, short, long, example string
	// consequence is what the confirmation of many nodes says.
	consequence string
	done        bulkOutcome
	locks       bool // it locks, and does not unlock
	send        func(ctx context.Context, api *adminclient.Client, node, reason string) (wire.NodeView, error)
}

func newNodeLock(e *env) *cobra.Command {
	return lockCommand(e, lockVerb{
		name: "lock", short: "Reject a node's identity at once", done: "locked", locks: true,
		consequence: "their agents are rejected until the nodes are unlocked",
		long: `Locks a node's identity: within five seconds every replica of the node API rejects the
node's requests, and open polls end. Use it when the node's key may be stolen.

Nothing changes on the node. Its agent keeps its identity and polls at most every 15
minutes; workloads continue. The node gets no tasks. A task that runs there loses its
lease: a destructive task is then recorded as lost, and its operation parks. The node's
enrollment and reissue tokens and bundle references become void, because one could
replace the locked identity. Without heartbeats the node becomes offline.

To end the lock, use gpuaas node unlock if the key is safe: the same identity is accepted
again. If it is not, use gpuaas node reissue-enrollment: the node gets a new identity, and
the locked one stays rejected. A node that was about to enroll needs a new bundle in
either case.

With --selector it locks every node that matches, after a confirmation. The exit code is 1
if a node failed, and 5 if one was not tried.

` + selectorHelp,
		example: "  gpuaas node lock gpu-17 --reason \"key found in a public image\"\n" +
			"  gpuaas node lock --selector rack=r7 --reason \"rack was opened, INC-812\" --yes",
		send: func(ctx context.Context, api *adminclient.Client, node, reason string) (wire.NodeView, error) {
			return decode[wire.NodeView](api.LockNode(ctx, node, nil, adminclient.LockRequest{Reason: reason}))
		},
	})
}

func newNodeUnlock(e *env) *cobra.Command {
	return lockCommand(e, lockVerb{
		name: "unlock", short: "Lift an operator's lock of a node's identity", done: "unlocked",
		consequence: "their identities are accepted again",
		long: `Lifts the lock of gpuaas node lock: the node's identity is accepted again from its agent's
next poll on, at most 15 minutes later. Restart gpuaas-node-agent on the node to poll at
once. The command also dismisses an alarm about the identity. It needs the role admin.

A lock that the server set cannot be lifted (reissue_required): two machines have the
identity, and both would be accepted. Make sure that no copy of the node runs, then use
gpuaas node reissue-enrollment.

With --selector it unlocks every node that matches, after a confirmation. The exit code is
1 if a node failed, and 5 if one was not tried.

` + selectorHelp,
		example: "  gpuaas node unlock gpu-17 --reason \"the key was never exposed\"\n" +
			"  gpuaas node unlock --selector rack=r7 --reason \"checked, INC-812\" --yes",
		send: func(ctx context.Context, api *adminclient.Client, node, reason string) (wire.NodeView, error) {
			return decode[wire.NodeView](api.UnlockNode(ctx, node, nil, adminclient.LockRequest{Reason: reason}))
		},
	})
}

// lockParallel is the default number of nodes that are locked or unlocked at a time.
const lockParallel = 16

// lockOptions are the flags of gpuaas node lock and gpuaas node unlock.
type lockOptions struct {
	reason   string
	selector *string
	parallel int
	yes      bool
}

func lockCommand(e *env, v lockVerb) *cobra.Command {
	var o lockOptions
	bulk := bulkFlags{noun: "node", selectors: []string{"selector"}, many: []string{"max-parallel"}}
	var c *cobra.Command
	c = e.command(v.name+" {NODE | --selector SELECTOR}", v.short, v.long, v.example, func(ctx context.Context, arg string) error {
		if err := checkReason(c.CommandPath(), o.reason, true); err != nil {
			return err
		}
		if bulk.selected(c) {
			return runLockMany(ctx, e, v, o)
		}
		before, err := decode[wire.NodeView](e.api().GetNode(ctx, arg, nil))
		if err != nil {
			return err
		}
		node, err := v.send(ctx, e.api(), arg, o.reason)
		if err != nil {
			return err
		}
		return e.print(node, func(w io.Writer) { writeLock(w, before, node) }, node.Host)
	})
	c.Args = bulk.check
	f := c.Flags()
	f.StringVar(&o.reason, "reason", "", "reason, kept in the audit trail and shown with the lock; required")
	f.FuncP("selector", "l", v.name+" every node that matches `SELECTOR`, for example rack=r7", optional(&o.selector))
	f.IntVar(&o.parallel, "max-parallel", lockParallel, "how many nodes of --selector to process at a time")
	addYes(c, &o.yes)
	return c
}

// writeLock describes what the command changed.
func writeLock(w io.Writer, before, n wire.NodeView) {
	switch {
	case n.IdentityLock == nil && before.IdentityLock != nil:
		fmt.Fprintf(w, "%s: unlocked; its agent polls again within 15 minutes\n", n.Host)
		return
	case n.IdentityLock == nil && before.IdentityAlarm != nil:
		fmt.Fprintf(w, "%s: the alarm is dismissed; the node's identity was not locked\n", n.Host)
		return
	case n.IdentityLock == nil:
		fmt.Fprintf(w, "%s: the node's identity was not locked; nothing was changed\n", n.Host)
		return
	case before.IdentityLock != nil:
		fmt.Fprintf(w, "%s: the node's identity was already locked; that lock stays, and tokens that were issued since are void\n", n.Host)
	}
	fmt.Fprintln(w, clean(n.Host+": "+n.IdentityLock.Message()))
	fmt.Fprintf(w, "next:  %s\n", n.IdentityLock.Next(n.Host))
}

// The outcomes of a node that had no lock to lift, or had one already.
const (
	lockAlready   bulkOutcome = "already_locked"
	lockNone      bulkOutcome = "not_locked"
	lockDismissed bulkOutcome = "alarm_dismissed" // it had an alarm and no lock
)

// outcomeFor returns the outcome of the command for a node, from its state before.
func (v lockVerb) outcomeFor(before wire.NodeView) bulkOutcome {
	switch locked := before.IdentityLock != nil; {
	case v.locks && locked:
		return lockAlready
	case v.locks || locked:
		return v.done
	case before.IdentityAlarm != nil:
		return lockDismissed
	}
	return lockNone
}

// lockRow is one node of the result.
type lockRow struct {
	NodeID  string      `json:"node_id"`
	Host    string      `json:"host"`
	Outcome bulkOutcome `json:"outcome"`
	Error   string      `json:"error,omitempty"`

	success bulkOutcome
}

func (r *lockRow) name() string         { return r.Host }
func (r *lockRow) outcome() bulkOutcome { return r.Outcome }

func (r *lockRow) details() string {
	if r.Error == "" {
		return ""
	}
	return ": " + r.Error
}

// runLockMany locks or unlocks all nodes that match.
func runLockMany(ctx context.Context, e *env, v lockVerb, o lockOptions) error {
	api := e.api()
	nodes, err := listNodes[wire.NodeView](ctx, api, adminclient.ListNodesParams{Selector: o.selector}, 0)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return schema.NewError(schema.KindNotFound, "no node matches %s", *o.selector).WithNext("gpuaas node list")
	}
	b := &bulkRun[*lockRow]{env: e, noun: "node"}
	for _, n := range nodes {
		b.rows = append(b.rows, &lockRow{NodeID: n.ID, Host: n.Host, Outcome: decideNotSent, success: v.outcomeFor(n)})
	}
	b.chosen = b.rows
	if err := e.confirm(ctx, "gpuaas node "+v.name, fmt.Sprintf("%s %s: %s", v.name, text.Count(len(nodes), "node"), v.consequence), o.yes); err != nil {
		return err
	}
	b.work(ctx, o.parallel, func(ctx context.Context, r *lockRow) {
		r.Outcome = r.success
		if _, err := v.send(ctx, api, r.NodeID, o.reason); err != nil {
			r.Outcome, r.Error = bulkFailed, target{id: r.NodeID, host: r.Host}.inError(err).Error()
		}
	})
	summary, err := b.print(map[string]any{"nodes": b.rows}, listing[*lockRow]{
		header: []string{"NODE", "OUTCOME", "ERROR", "ID"}, wide: 1,
		cells: func(r *lockRow) []string { return []string{r.Host, r.Outcome.words(), dash(r.Error), r.NodeID} },
		name:  (*lockRow).name,
	})
	switch {
	case err != nil:
		return err
	case summary[bulkFailed] > 0:
		return &exitError{schema.ExitFailed, []string{text.Count(summary[bulkFailed], "node") + " failed"}}
	case summary[decideNotSent] > 0:
		return &exitError{schema.ExitPending, []string{text.Count(summary[decideNotSent], "node") + " not tried; run the command again"}}
	}
	return nil
}
