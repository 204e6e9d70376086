package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newOpShow(e *env) *cobra.Command {
	var o operationArg
	c := e.command("show {NODE | OPERATION}", "Show an operation",
		`Shows the operation that holds a node, or the last one that did: its phases, why it
is parked and since when, who must act, and the possible decisions, the least harmful
first. The status is read from the database and needs neither Temporal nor a worker.

A reissue-enrollment runs beside the operation that holds the node: --reissue shows it.`,
		"  gpuaas op show gpu-17\n  gpuaas op show gpu-17 --reissue\n  gpuaas op show gpu-17 -o json | jq .operation.status",
		func(ctx context.Context, arg string) error {
			ctl, err := e.control()
			if err != nil {
				return err
			}
			t, st, err := locate(ctx, ctl, "show", arg, o)
			if err != nil {
				return err
			}
			if !o.reissue && reissueRuns(ctx, ctl, t) {
				e.message("note: a reissue runs beside it: %s", lifecycle.OpCommand("show", lifecycle.ActionReissueEnrollment, t.name()))
			}
			return e.print(st, func(w io.Writer) { e.writeOperation(w, t, st.Operation) }, st.Operation.OperationID)
		})
	e.addOperation(c, &o)
	return c
}

// addOperation adds the flags that address an operation.
func (e *env) addOperation(c *cobra.Command, o *operationArg) {
	c.Flags().StringVar(&o.operation, "operation", "", "id of the operation; rejected when the operation is not the node's")
	c.RegisterFlagCompletionFunc("operation", func(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) { //nolint:errcheck // fails only for an unknown flag
		q := adminclient.ListOperationsParams{Open: new(true), Node: given(strings.Join(args, ""))}
		return e.complete(func(ctx context.Context, api *adminclient.Client, _ string) (ids []cobra.Completion, err error) {
			ops, err := listOperations(ctx, api, q, maxCompletions)
			for _, o := range ops {
				ids = append(ids, cobra.CompletionWithDesc(o.OperationID, clean(fmt.Sprintf("%s %s, %s", o.Action, o.Host, o.Status))))
			}
			return ids, err
		})(c, nil, text)
	})
	c.Flags().BoolVar(&o.reissue, "reissue", false, "act on the node's reissue-enrollment instead of its lifecycle operation")
}

// watchLimit bounds a watch without --timeout.
const watchLimit = 365 * 24 * time.Hour

func newOpWatch(e *env) *cobra.Command {
	var o operationArg
	timeout := watchLimit
	c := e.command("watch {NODE | OPERATION}", "Follow an operation until it ends",
		`Follows an operation until it ends, also while it is parked. The exit code is the
operation's. Ctrl-C stops the watch, not the operation.`,
		"  gpuaas op watch gpu-17\n  gpuaas op watch gpu-17 --timeout 10m -o json",
		func(ctx context.Context, arg string) error {
			ctl, err := e.control()
			if err != nil {
				return err
			}
			t, st, err := locate(ctx, ctl, "watch", arg, o)
			if err != nil {
				return err
			}
			st, err = e.follow(ctx, followRequest{target: t, operation: st.Operation, control: ctl, limit: timeout, throughParks: true})
			return e.finish(ctx, t, st, err)
		})
	c.Flags().DurationVar(&timeout, "timeout", timeout, "how long to watch (default: until the operation ends)")
	c.Flags().Lookup("timeout").DefValue = "0s"
	e.addOperation(c, &o)
	return c
}

func (e *console) writeOperation(w io.Writer, t target, op lifecycle.Operation) {
	row(w, "Operation:", fmt.Sprintf("%s %s", op.Action, t.name()))
	row(w, "ID:", op.OperationID)
	row(w, "Status:", string(op.Status))
	optionalRow(w, "By:", op.Actor)
	optionalRow(w, "Reason:", op.Reason)
	row(w, "Started:", e.stampOf(op.StartedAt))
	if op.EndedAt != nil {
		row(w, "Ended:", e.stampOf(op.EndedAt))
	} else if op.DeadlineAt != nil && !op.Status.Ended() {
		row(w, "Deadline:", e.stampOf(op.DeadlineAt))
	}
	optionalRow(w, "Outcome:", op.Outcome)
	row(w, "Run:", op.WorkflowID+" "+op.RunID)
	if len(op.Phases) > 0 {
		fmt.Fprintln(w)
		row(w, "PHASE", "STATE", "TOOK", "ATTEMPT", "REASON")
	}
	for _, p := range op.Phases {
		row(w, p.Name, string(p.State), dash(elapsed(p.StartedAt, p.EndedAt, e.clock.now())), strconv.Itoa(p.Attempt), dash(p.Reason))
	}
	if h := hint(t, op); h != "" {
		fmt.Fprintln(w)
		row(w, "What to do:", h)
	}
	s := op.Stuck
	if s == nil {
		return
	}
	fmt.Fprintln(w)
	row(w, "Waiting on:", string(s.WaitingOn))
	row(w, "Because:", fmt.Sprintf("%s (%s)", s.Message, s.Reason))
	row(w, "Since:", e.stamp(s.Since))
	row(w, "Likely cause:", dash(s.Cause))
	row(w, "Next:", nextCommand(t, op.Action, s))
	label := "Options:"
	for _, o := range s.Options {
		row(w, label, fmt.Sprintf("%s: %s", o.Does, fillNode(o.Command, t.name())))
		label = ""
	}
}

// optionalRow writes a row unless its value is empty.
func optionalRow(w io.Writer, label, value string) {
	if value != "" {
		row(w, label, value)
	}
}
