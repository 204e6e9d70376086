package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/webui"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuckQuery selects the operations that need attention.
type stuckQuery struct {
	selector         *string
	node             *string // only this node; not with --direct
	reasons, actions *[]string
	limit            uint // 0 for all
}

// matches reports whether an operation has one of the reasons and one of the actions.
func (q stuckQuery) matches(op lifecycle.Operation) bool {
	return (q.reasons == nil || slices.Contains(*q.reasons, op.Stuck.Reason)) &&
		(q.actions == nil || slices.Contains(*q.actions, string(op.Action)))
}

// filtered reports whether the query leaves out operations by what they are.
func (q stuckQuery) filtered() bool { return q.selector != nil || q.reasons != nil || q.actions != nil }

// all is the command that lists all operations of the query.
func (q stuckQuery) all() string {
	c := "gpuaas stuck --limit 0"
	if q.selector != nil {
		c += " --selector '" + *q.selector + "'"
	}
	if q.reasons != nil {
		c += " --stuck-reason " + strings.Join(*q.reasons, ",")
	}
	if q.actions != nil {
		c += " --action " + strings.Join(*q.actions, ",")
	}
	return c
}

func newStuck(e *env) *cobra.Command {
	var watch, exitCode bool
	var q stuckQuery
	c := e.command("stuck", "List operations and nodes that need attention",
		`Lists every parked, abandoned or overdue operation, oldest first: why and for how long it
has needed attention, who must act, and the least harmful command that resolves it. It also
lists what no operation is parked for: requests that no worker has claimed, nodes that are
silent, drains of more than 30 minutes, certificates that are not renewed, and nodes that
no operation terminates. Faults of the control plane are reported as warnings: a service that does not respond, workers
that do not poll or are too slow, workflow tasks that fail, activities that are retried,
results that are not delivered, and schedules that do not run.

With --direct the list comes from Temporal alone. It needs no worker and has no abandoned
operations and no nodes, which only the database shows; a request that no worker has
claimed is overdue then. An admin API that is configured and does not respond is a fault.

The exit code is 0. With --exit-code it is 5 if there is an operation, a node or a fault.

`+selectorHelp,
		"  gpuaas stuck\n  gpuaas stuck --watch\n  gpuaas stuck --stuck-reason agent_silent -l rack=r7\n  gpuaas stuck --exit-code -o json | jq -r '.stuck[].stuck.next'",
		func(ctx context.Context, _ string) error {
			ctl, err := e.control()
			if err != nil {
				return err
			}
			var list wire.StuckList
			err = e.refresh(ctx, ctl, watch, func() error {
				now, err := ctl.stuck(ctx, q)
				if err != nil {
					return stuckFailed(err, e.flags.direct)
				}
				list = now
				e.clearScreen(watch)
				return printStuck(e.console, list, q)
			})
			if err == nil && exitCode && !watch && len(list.Stuck)+len(list.Nodes)+len(list.Faults) > 0 {
				return &exitError{schema.ExitPending, nil}
			}
			return err
		})
	directly(c)
	addSelector(c, &q.selector)
	addStuckReason(c, &q.reasons, "only operations parked for these `REASONS`, for example drain_blocked")
	addFilter(c, &q.actions, "action", "only these `ACTIONS`", actionNames()...)
	c.Flags().UintVar(&q.limit, "limit", wire.DefaultPage, "list at most N; 0 for all")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "refresh at each change until interrupted")
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with code 5 when something needs attention")
	return c
}

// suggestRepeat adds to the error of an unavailable service that has no next step that the
// command also works with --direct.
func suggestRepeat(err error, direct bool) error {
	if err == nil || schema.AsError(err).Next != "" {
		return err
	}
	return suggestDirect(err, direct, "repeat the command with --direct")
}

// stuckFailed adds to the error of the command what works instead. The API's general next step for a service that
// does not respond, which has no reason, is this command.
func stuckFailed(err error, direct bool) error {
	if e := schema.AsError(err); !direct && e.Kind == schema.KindServiceUnavailable && e.Reason == "" {
		copied := *e
		err = copied.WithNext("gpuaas admin check names the service")
	}
	return suggestDirect(err, direct, "gpuaas stuck --direct")
}

// suggestDirect adds to the error of an unavailable service what works without it, unless
// the command has --direct.
func suggestDirect(err error, direct bool, instead string) error {
	if direct || schema.KindOf(err) != schema.KindServiceUnavailable {
		return err
	}
	unavailable := *schema.AsError(err)
	unavailable.Next = strings.TrimPrefix(unavailable.Next+"; without the admin API and its database: "+instead, "; ")
	return &unavailable
}

func printStuck(e *console, list wire.StuckList, q stuckQuery) error {
	for _, f := range list.Faults {
		e.message("warning: %s", f.Message)
		if f.Next != "" {
			e.message("next:  %s", f.Next)
		}
	}
	now := e.clock.now()
	empty := "nothing is stuck"
	if q.filtered() {
		empty = "no operation that needs attention matches; all of them: gpuaas stuck" + reasonNote(q.reasons)
	}
	err := printList(e, listing[wire.StuckOperation]{
		object: list, rows: withNodes(list), empty: empty,
		header: []string{"NODE", "ACTION", "PHASE", "WAITING ON", "SINCE", "WHY", "NEXT", "ID"}, wide: 1, stack: true,
		cells: func(o wire.StuckOperation) []string {
			s := cmp.Or(o.Stuck, &lifecycle.Stuck{Since: o.StartedAt})
			t := target{id: o.NodeID, host: o.Host}
			return []string{t.name(), dash(string(o.Action)), dash(cmp.Or(s.Phase, o.Phase)), string(o.WaitingOn), lifecycle.Span(now.Sub(s.Since)),
				dash(why(o, s)), nextCommand(t, o.Action, o.Stuck), dash(o.OperationID)}
		},
		name: func(o wire.StuckOperation) string { return cmp.Or(o.OperationID, o.NodeID) },
	})
	if err == nil && list.MoreNodes > 0 {
		e.message("and %d more nodes: gpuaas node list --state offline", list.MoreNodes)
	}
	if err == nil && list.More > 0 {
		e.message("and %d more: %s", list.More, q.all())
	}
	if err == nil {
		printViews(e, list.Stuck)
	}
	return err
}

// why is the message of a row, with the probable cause if there is one.
func why(o wire.StuckOperation, s *lifecycle.Stuck) string {
	message := cmp.Or(s.Message, s.Reason)
	if o.ProbableCause != nil {
		message += "; probably: " + clean(o.ProbableCause.Summary)
	}
	return message
}

// withNodes returns the operations and nodes of the list as rows of one table, oldest first. The
// phase of a node is the row of the stuck table.
func withNodes(list wire.StuckList) []wire.StuckOperation {
	rows := slices.Clone(list.Stuck)
	for _, n := range list.Nodes {
		rows = append(rows, wire.StuckOperation{State: n.State, WebURL: n.WebURL, OperationSummary: wire.OperationSummary{OperationID: n.OperationID,
			NodeID: n.NodeID, Host: n.Host, Action: n.Action, WaitingOn: n.Stuck.WaitingOn, Stuck: &n.Stuck, StartedAt: n.Stuck.Since}})
	}
	since := func(o wire.StuckOperation) time.Time {
		if o.Stuck == nil {
			return o.StartedAt
		}
		return o.Stuck.Since
	}
	slices.SortStableFunc(rows, func(a, b wire.StuckOperation) int { return since(a).Compare(since(b)) })
	return rows
}

// printViews prints the lists of the Web UI that show the same operations: all of them, and
// if they are of one node, its operations. The page of an operation names the Web UI.
func printViews(e *console, stuck []wire.StuckOperation) {
	if len(stuck) == 0 {
		return
	}
	workflows, _, ok := strings.Cut(stuck[0].WebURL, "/workflows/")
	if !ok {
		return
	}
	views := webui.Views()[:1]
	if !slices.ContainsFunc(stuck, func(o wire.StuckOperation) bool { return o.Host != stuck[0].Host }) {
		views = append(views, webui.NodeView(stuck[0].Host))
	}
	for _, v := range views {
		e.message("Web UI, %s: %s", v.Title, v.URL(workflows+"/workflows"))
	}
}
