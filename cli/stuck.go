package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/webui"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuckQuery selects the operations that need attention.
type stuckQuery struct {
	selector         *string
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
	c := e.command("stuck", "List operations that need attention",
		`Lists every parked, abandoned or overdue operation, oldest first: why and for how long it
has needed attention, who must act, and the least harmful command that resolves it. Faults
of the control plane are reported as warnings: a service that does not respond, workers
that do not poll or are too slow, workflow tasks that fail, activities that are retried,
results that are not delivered, and schedules that do not run.

With --direct the list comes from Temporal alone. It needs no worker and has no abandoned
operations, which only the database shows. An admin API that is configured and does not
respond is a fault then.

The exit code is 0. With --exit-code it is 5 if there is an operation or a fault.

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
					return suggestDirect(err, e.flags.direct, "gpuaas stuck --direct")
				}
				list = now
				e.clearScreen(watch)
				return printStuck(e.console, list, q)
			})
			if err == nil && exitCode && !watch && len(list.Stuck)+len(list.Faults) > 0 {
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
		empty = "no operation that needs attention matches; all of them: gpuaas stuck"
	}
	err := printList(e, listing[wire.StuckOperation]{
		object: list, rows: list.Stuck, empty: empty,
		header: []string{"NODE", "ACTION", "PHASE", "WAITING ON", "SINCE", "WHY", "NEXT", "ID"}, wide: 1,
		cells: func(o wire.StuckOperation) []string {
			s := cmp.Or(o.Stuck, &lifecycle.Stuck{Since: o.StartedAt})
			t := target{id: o.NodeID, host: o.Host}
			return []string{t.name(), string(o.Action), dash(cmp.Or(s.Phase, o.Phase)), string(o.WaitingOn), lifecycle.Span(now.Sub(s.Since)),
				dash(cmp.Or(s.Message, s.Reason)), nextCommand(t, o.Action, o.Stuck), o.OperationID}
		},
		name: func(o wire.StuckOperation) string { return o.OperationID },
	})
	if err == nil && list.More > 0 {
		e.message("and %d more: %s", list.More, q.all())
	}
	if err == nil {
		printViews(e, list.Stuck)
	}
	return err
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
