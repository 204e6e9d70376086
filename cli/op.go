package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newOp(e *env) *cobra.Command {
	c := newGroup("op", "Show, follow and resolve operations",
		"Shows operations, follows them, and resolves them when they are parked.", newOpList(e), newOpShow(e), newOpWatch(e))
	for _, d := range decisions() {
		c.AddCommand(newOpDecide(e, d))
	}
	return c
}

type opListOptions struct {
	node, selector, since  string
	status, action, reason []string
	open                   bool
	limit                  uint
}

func newOpList(e *env) *cobra.Command {
	var o opListOptions
	c := e.command("list", "List operations",
		"Lists operations, newest first.",
		"  gpuaas op list --open\n  gpuaas op list --node gpu-17 --since 24h\n  gpuaas op list --status parked --stuck-reason drain_blocked -l rack=r7",
		func(ctx context.Context, _ string) error {
			api := e.api()
			q := adminclient.ListOperationsParams{Node: given(o.node), Selector: given(o.selector), Since: given(o.since),
				Status: several(o.status), Action: several(o.action), Reason: several(o.reason)}
			if o.open {
				q.Open = &o.open
			}
			ops, err := listOperations(ctx, api, q, o.limit)
			if err != nil {
				return err
			}
			now := e.clock.now()
			return printList(e.console, listing[wire.OperationSummary]{
				object: wire.OperationList{Operations: ops}, rows: ops, empty: "no operation matches",
				header: []string{"NODE", "ACTION", "STATUS", "PHASE", "STARTED", "BY", "ID"},
				cells: func(o wire.OperationSummary) []string {
					status := string(o.Status)
					if o.Stuck != nil && o.Status == lifecycle.OperationParked {
						status += " (" + o.Stuck.Reason + ")"
					}
					return []string{o.Host, string(o.Action), status, dash(o.Phase), span(now.Sub(o.StartedAt)) + " ago", o.Actor, o.OperationID}
				},
				name: func(o wire.OperationSummary) string { return o.OperationID },
			})
		})
	c.Aliases = []string{"ls"}
	f := c.Flags()
	e.addNode(c, &o.node)
	f.StringSliceVar(&o.status, "status", nil, "only these statuses")
	f.StringSliceVar(&o.action, "action", nil, "only these actions")
	f.StringSliceVar(&o.reason, "stuck-reason", nil, "only operations parked for these reasons")
	f.StringVarP(&o.selector, "selector", "l", "", "only nodes that match, for example rack=r7,tier!=test")
	f.StringVar(&o.since, "since", "", "only operations started since a time, or within a duration such as 24h")
	f.BoolVar(&o.open, "open", false, "only operations that have not ended")
	f.UintVar(&o.limit, "limit", wire.DefaultPage, "list at most N; 0 for all")
	return c
}
