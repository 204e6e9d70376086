package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newOp(e *env) *cobra.Command {
	c := newGroup("op", "Show, follow and resolve operations",
		"Shows operations, follows them, and resolves them when they are parked. Of a parked\n"+
			"operation, show and watch print the possible decisions: each as a command that is valid\n"+
			"for this park only.", newOpList(e), newOpShow(e), newOpWatch(e), newOpCause(e))
	c.Example = "  gpuaas op list --open\n  gpuaas op show gpu-17\n  gpuaas op watch gpu-17\n" +
		"  gpuaas op retry gpu-17 --reason \"agent restarted\" --wait\n" +
		"  gpuaas op retry --stuck-reason service_unavailable --reason \"Vault is unsealed\""
	for _, d := range decisions() {
		c.AddCommand(newOpDecide(e, d))
	}
	return c
}

func newOpList(e *env) *cobra.Command {
	var q adminclient.ListOperationsParams
	var open bool
	var limit uint
	c := e.command("list", "List operations", "Lists operations, newest first.",
		"  gpuaas op list --open\n  gpuaas op list --node gpu-17 --since 24h\n  gpuaas op list --status parked --stuck-reason drain_blocked -l rack=r7",
		func(ctx context.Context, _ string) error {
			if open {
				q.Open = &open
			}
			ops, err := listOperations(ctx, e.api(), q, limit)
			if err != nil {
				return err
			}
			now := e.clock.now()
			return printList(e.console, listing[wire.OperationSummary]{
				object: wire.OperationList{Operations: ops}, rows: ops, empty: "no operation matches" + reasonNote(q.Reason),
				header: []string{"NODE", "ACTION", "STATUS", "PHASE", "STARTED", "BY", "ID", "TOOK", "REASON", "OUTCOME"}, wide: 3,
				cells: func(o wire.OperationSummary) []string {
					status := string(o.Status)
					if o.Stuck != nil && !o.Status.Ended() {
						status += " (" + o.Stuck.Reason + ")"
					}
					return []string{o.Host, string(o.Action), status, dash(o.Phase), lifecycle.Span(now.Sub(o.StartedAt)) + " ago", o.Actor, o.OperationID,
						elapsed(&o.StartedAt, o.EndedAt, now), dash(o.Reason), dash(o.Outcome)}
				},
				name: func(o wire.OperationSummary) string { return o.OperationID },
			})
		})
	c.Aliases = []string{"ls"}
	e.addNode(c, &q.Node, "only the operations of `NODE`")
	addFilter(c, &q.Status, "status", "only these `STATUSES`", lifecycle.OperationStates()...)
	addFilter(c, &q.Action, "action", "only these `ACTIONS`", actionNames()...)
	addStuckReason(c, &q.Reason, "only operations parked for these `REASONS`, for example drain_blocked")
	addSelector(c, &q.Selector)
	addSince(c, &q.Since, "operations started")
	c.Flags().BoolVar(&open, "open", false, "only operations that have not ended")
	c.Flags().UintVar(&limit, "limit", wire.DefaultPage, "list at most N; 0 for all")
	return c
}

func actionNames() (actions []lifecycle.Action) {
	for _, p := range lifecycle.Operations() {
		actions = append(actions, p.Action)
	}
	return actions
}

// addStuckReason adds --stuck-reason.
func addStuckReason(c *cobra.Command, value **[]string, usage string) {
	addOpenFilter(c, value, "stuck-reason", usage, stuckReasons(), func(string) error { return nil }) // an error's own reason may be one too
}

// stuckReasons are the documented reasons of parks.
func stuckReasons() (reasons []string) {
	for _, r := range lifecycle.ParkReasons() {
		reasons = append(reasons, r.Reason)
	}
	return reasons
}

// reasonNote follows the message that nothing matches the reasons of --stuck-reason. It names those
// that are not documented, which may be misspelled; empty if there are none.
func reasonNote(reasons *[]string) string {
	if reasons == nil {
		return ""
	}
	documented := stuckReasons()
	unknown := slices.DeleteFunc(slices.Clone(*reasons), func(r string) bool { return slices.Contains(documented, r) })
	if len(unknown) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s is not among the documented reasons: %s", strings.Join(unknown, ", "), strings.Join(documented, ", "))
}
