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

func newOpList(e *env) *cobra.Command {
	var q adminclient.ListOperationsParams
	var open bool
	var limit uint
	c := e.command("list", "List operations",
		"Lists operations, newest first.",
		"  gpuaas op list --open\n  gpuaas op list --node gpu-17 --since 24h\n  gpuaas op list --status parked --stuck-reason drain_blocked -l rack=r7",
		func(ctx context.Context, _ string) error {
			api := e.api()
			if open {
				q.Open = &open
			}
			ops, err := listOperations(ctx, api, q, limit)
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
	e.addNode(c, &q.Node)
	f.Var(listFilter{&q.Status}, "status", "only these statuses")
	f.Var(listFilter{&q.Action}, "action", "only these actions")
	f.Var(listFilter{&q.Reason}, "stuck-reason", "only operations parked for these reasons")
	f.VarP(textFilter{&q.Selector}, "selector", "l", "only nodes that match, for example rack=r7,tier!=test")
	f.Var(textFilter{&q.Since}, "since", "only operations started since a time, or within a duration such as 24h")
	f.BoolVar(&open, "open", false, "only operations that have not ended")
	f.UintVar(&limit, "limit", wire.DefaultPage, "list at most N; 0 for all")
	return c
}
