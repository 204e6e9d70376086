package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newOp(e *env) *cobra.Command {
	return newGroup("op", "Show, follow and resolve operations",
		"Shows operations, follows them, and resolves them when they are parked.",
		newOpList(e), newOpShow(e), newOpWatch(e), newOpRetry(e), newOpSkip(e), newOpCancel(e), newOpForce(e), newOpExtend(e))
}

type opListOptions struct {
	node, selector, since  string
	status, action, reason []string
	open                   bool
	limit                  int
}

func newOpList(e *env) *cobra.Command {
	var o opListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List operations",
		Long:    "Lists operations, newest first.",
		Example: "  gpuaas op list --open\n  gpuaas op list --node gpu-17 --since 24h\n  gpuaas op list --status parked --reason drain_blocked -l rack=r7",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runOpList(c.Context(), e, o) },
	}
	f := c.Flags()
	f.StringVar(&o.node, "node", "", "only this node (id or host name)")
	f.StringSliceVar(&o.status, "status", nil, "only these statuses")
	f.StringSliceVar(&o.action, "action", nil, "only these actions")
	f.StringSliceVar(&o.reason, "stuck-reason", nil, "only operations parked for these reasons")
	f.StringVarP(&o.selector, "selector", "l", "", "only nodes that match, for example rack=r7,tier!=test")
	f.StringVar(&o.since, "since", "", "only operations started since a time, or within a duration such as 24h")
	f.BoolVar(&o.open, "open", false, "only operations that did not end")
	f.IntVar(&o.limit, "limit", wire.DefaultPage, "list at most N; 0 for all")
	e.completeNodeFlag(c)
	return c
}

func runOpList(ctx context.Context, e *env, o opListOptions) error {
	if o.limit < 0 {
		return usagef("gpuaas op list", "--limit %d: want 0 or more", o.limit)
	}
	api, err := e.api()
	if err != nil {
		return err
	}
	q := adminclient.ListOperationsParams{Node: given(o.node), Selector: given(o.selector), Since: given(o.since),
		Status: several(o.status), Action: several(o.action), Reason: several(o.reason)}
	if o.open {
		q.Open = &o.open
	}
	ops, err := api.operations(ctx, q, o.limit)
	if err != nil {
		return err
	}
	if len(ops) == 0 {
		e.say("no operation matches")
		if !e.machine() {
			return nil
		}
	}
	return e.print(wire.OperationList{Operations: ops}, func(w io.Writer) { e.writeOperations(w, ops) })
}

// given is nil for a flag that was not given.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func several(texts []string) *[]string {
	if len(texts) == 0 {
		return nil
	}
	return &texts
}

func (e *printer) writeOperations(w io.Writer, ops []wire.OperationSummary) {
	now := e.clock.now()
	row(w, "NODE", "ACTION", "STATUS", "PHASE", "STARTED", "BY", "ID")
	for _, o := range ops {
		status := string(o.Status)
		if o.Stuck != nil && o.Status == lifecycle.OperationParked {
			status += " (" + o.Stuck.Reason + ")"
		}
		row(w, o.Host, string(o.Action), status, dash(o.Phase), span(now.Sub(o.StartedAt))+" ago", o.Actor, o.OperationID)
	}
}
