package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// operationArg is how the op commands name an operation.
type operationArg struct {
	operation string // its id
	reissue   bool
}

// located is the operation that a command names.
type located struct {
	control control
	target  target
	status  wire.OperationView
	arg     operationArg
}

// opCommand is a command about the operation that its argument and flags name. check,
// if not nil, precedes every request.
func (e *env) opCommand(verb, short, long, example string, check func() error, run func(context.Context, located) error) *cobra.Command {
	var o operationArg
	c := e.command(verb+" {NODE | OPERATION}", short, long, example, func(ctx context.Context, arg string) (err error) {
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		found := located{arg: o}
		if found.control, err = e.control(); err != nil {
			return err
		}
		if found.target, found.status, err = locate(ctx, found.control, verb, arg, o); err != nil {
			return suggestRepeat(err, e.flags.direct)
		}
		return run(ctx, found)
	})
	directly(c)
	c.Flags().StringVar(&o.operation, "operation", "", "id of the operation; rejected when the operation is not the node's")
	completes(c, "operation", func(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
	return c
}

func newOpShow(e *env) *cobra.Command {
	return e.opCommand("show", "Show an operation",
		`Shows the operation that holds a node, or the last one that did: its phases, why it
is parked and since when, who must act, and the possible decisions, the least harmful
first. Of a drain that runs, it names the workloads that the node reported last. The status
is read from the database and needs neither Temporal nor a worker. While Temporal responds,
calls that failed and are retried are shown with their last error.

A reissue-enrollment runs beside the operation that holds the node: --reissue shows it.`,
		"  gpuaas op show gpu-17\n  gpuaas op show gpu-17 --reissue\n  gpuaas op show gpu-17 -o json | jq .operation.status", nil,
		func(ctx context.Context, found located) error {
			t, st := found.target, found.status
			if !found.arg.reissue && reissueRuns(ctx, found.control, t) {
				e.message("note: a reissue runs beside it: %s", t.op("show", lifecycle.ActionReissueEnrollment))
			}
			return e.print(st, func(w io.Writer) { e.writeOperation(w, t, st) }, st.Operation.OperationID)
		})
}

// watchLimit bounds a watch without --timeout.
const watchLimit = 365 * 24 * time.Hour

func newOpWatch(e *env) *cobra.Command {
	timeout := watchLimit
	c := e.opCommand("watch", "Follow an operation until it ends",
		`Follows an operation until it ends. When the operation parks, the command prints why and
the possible decisions, and continues after the decision. Ctrl-C stops the watch, not the
operation.

The exit code is the operation's. A watch that stops first exits with code 5. An operation
whose workflow run ended without an outcome is abandoned: the watch then prints the command
that rehydrates the node, and exits with code 1.`,
		"  gpuaas op watch gpu-17\n  gpuaas op watch gpu-17 --timeout 10m -o json", nil,
		func(ctx context.Context, found located) error {
			t, st := found.target, found.status
			end, err := e.follow(ctx, followRequest{target: t, operation: st.Operation, control: found.control, limit: timeout, throughParks: true})
			return e.finish(ctx, t, end, err)
		})
	addTimeout(c, &timeout, "longest `DURATION` of the watch (default: until the operation ends)")
	return c
}

func (e *console) writeOperation(w io.Writer, t target, v wire.OperationView) {
	op, deadline, next := v.Operation, v.Operation.DeadlineAt, ""
	if op.Status.Ended() {
		deadline = nil
	}
	if t.view != nil && op.Status.Ended() && op.Status != lifecycle.OperationCompleted {
		next = t.view.Next()
	}
	fields(w, "Operation:", fmt.Sprintf("%s %s", op.Action, t.name()), "ID:", op.OperationID, "Status:", string(op.Status),
		"By:", op.Actor, "Reason:", op.Reason, "Started:", e.stampOf(op.StartedAt), "Ended:", e.stampIf(op.EndedAt),
		"Deadline:", e.stampIf(deadline), "Outcome:", op.Outcome, "  Next:", next, "Run:", op.WorkflowID+" "+op.RunID, "  Web:", v.WebURL)
	if len(op.Phases) > 0 {
		fmt.Fprintln(w)
		row(w, "PHASE", "STATE", "TOOK", "ATTEMPT", "REASON")
	}
	for _, p := range op.Phases {
		row(w, p.Name, string(p.State), dash(elapsed(p.StartedAt, p.EndedAt, e.clock.now())), strconv.Itoa(p.Attempt), dash(p.Reason))
	}
	for i, line := range drainWaits(t, op) {
		if i == 0 {
			fmt.Fprintln(w)
		}
		row(w, "Waits for:", line)
	}
	if h := hint(t, op); h != "" {
		fmt.Fprintln(w)
		row(w, "What to do:", h)
	}
	if len(v.Faults) > 0 {
		fmt.Fprintln(w)
	}
	for _, f := range v.Faults {
		row(w, "Fault:", fmt.Sprintf("%s (%s)", f.Message, f.Reason))
	}
	s := op.Stuck
	if s == nil {
		return
	}
	fmt.Fprintln(w)
	fields(w, "Waiting on:", string(s.WaitingOn), "Because:", fmt.Sprintf("%s (%s)", s.Message, s.Reason),
		"Since:", e.stamp(s.Since), "Likely cause:", dash(s.Cause), "Retries:", retries(s), "Next:", nextCommand(t, op.Action, s))
	if top := v.ProbableCause.Top(); top != nil {
		row(w, "Probable cause:", fmt.Sprintf("%s (%s, confidence %.2f)", clean(top.Summary), top.Cause, top.Confidence))
		row(w, "", fmt.Sprintf("owner: %s; next: %s; all candidates: gpuaas op cause %s", top.Owner, clean(top.Next), t.name()))
	}
	writeOptions(w, t, s)
}

func writeOptions(w io.Writer, t target, s *lifecycle.Stuck) {
	label := "Options:"
	for _, o := range s.Options {
		row(w, label, o.Does)
		row(w, "", "  "+preview.Fill(o.Command, t.name()))
		label = ""
	}
}

// retries says whether a parked operation is retried in the background. It names no
// times: the database has those of the park.
func retries(s *lifecycle.Stuck) string {
	if s.Retrying == nil {
		return ""
	}
	return fmt.Sprintf("in the background, every %s to %s; the operation continues when one succeeds",
		lifecycle.Span(lifecycle.RetryPause), lifecycle.Span(lifecycle.MaxRetryPause))
}

// maxWaits is the number of workloads that are named.
const maxWaits = 20

// drainWaits lists what a drain that runs waits for, as the node reported it last.
func drainWaits(t target, op lifecycle.Operation) (lines []string) {
	drains := slices.ContainsFunc(op.Phases, func(p lifecycle.Phase) bool {
		return p.Name == lifecycle.PhaseDrain && p.State == lifecycle.PhaseRunning
	})
	if t.view == nil || !drains || op.Status.Ended() {
		return nil
	}
	names := t.view.Blockers()
	if len(names) == 0 {
		return []string{"the end of the drain; the node reports no workload"}
	}
	for i, name := range names {
		if i == maxWaits {
			return append(lines, fmt.Sprintf("%d more: gpuaas node show %s", len(names)-i, t.name()))
		}
		lines = append(lines, clean(name))
	}
	return lines
}
