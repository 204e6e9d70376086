package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func newOpShow(e *env) *cobra.Command {
	var o operationArg
	c := &cobra.Command{
		Use: "show {NODE | OPERATION}", Short: "Show an operation",
		Long: `Shows the operation that holds a node, or the last one that did: its phases, why it
is parked and since when, who must act, and the possible decisions, the least harmful
first. The status is read from the database and needs neither Temporal nor a worker.

A reissue-enrollment runs beside the operation that holds the node: --reissue shows it.`,
		Example: "  gpuaas op show gpu-17\n  gpuaas op show gpu-17 --reissue\n  gpuaas op show gpu-17 -o json | jq .operation.status",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runOpShow(c.Context(), e, args[0], o) },
	}
	addOperation(c, &o)
	return c
}

// addOperation adds the flags that address an operation.
func addOperation(c *cobra.Command, o *operationArg) {
	c.Flags().StringVar(&o.operation, "operation", "", "id of the operation; refused when it is not the node's")
	c.Flags().BoolVar(&o.reissue, "reissue", false, "act on the node's reissue-enrollment instead of its lifecycle operation")
}

func runOpShow(ctx context.Context, e *env, arg string, o operationArg) error {
	ctl, err := e.control(ctx)
	if err != nil {
		return err
	}
	t, st, err := locate(ctx, ctl, arg, o)
	if err != nil {
		return t.noOperation(ctx, ctl, "show", err, o.reissue)
	}
	if !o.reissue && t.reissueRuns(ctx, ctl) {
		e.say("note: a reissue runs beside it: %s", lifecycle.OpCommand("show", lifecycle.ActionReissueEnrollment, t.name()))
	}
	return e.print(st, func(w io.Writer) { e.writeOperation(w, t, st) })
}

// reissueRuns reports whether a reissue of the node is known to run.
func (t target) reissueRuns(ctx context.Context, ctl control) bool {
	st, err := ctl.newest(ctx, t, true)
	return err == nil && !st.Operation.Status.Ended()
}

// noOperation words a not_found about the node's operation, and points at the
// reissue that may be meant. Other errors, and one about the node itself, pass.
func (t target) noOperation(ctx context.Context, ctl control, verb string, err error, reissue bool) error {
	if t.id == "" || !errors.Is(err, &schema.Error{Kind: schema.KindNotFound}) {
		return err
	}
	what, next := "operation", "gpuaas node show "+t.name()
	switch {
	case reissue:
		what = "reissue"
	case t.reissueRuns(ctx, ctl):
		next = lifecycle.OpCommand(verb, lifecycle.ActionReissueEnrollment, t.name())
	}
	return schema.NewError(schema.KindNotFound, "no %s has run on %s", what, t.name()).WithNext(next)
}

func (e *printer) writeOperation(w io.Writer, t target, st lifecycle.OperationStatus) {
	op := st.Operation
	row(w, "Operation:", fmt.Sprintf("%s %s", op.Action, t.name()))
	row(w, "ID:", op.OperationID)
	row(w, "Status:", string(op.Status))
	if op.Actor != "" {
		row(w, "By:", op.Actor)
	}
	if op.Reason != "" {
		row(w, "Reason:", op.Reason)
	}
	row(w, "Started:", e.stampOf(op.StartedAt))
	if op.EndedAt != nil {
		row(w, "Ended:", e.stampOf(op.EndedAt))
	}
	if op.DeadlineAt != nil && !op.Status.Ended() {
		row(w, "Deadline:", e.stampOf(op.DeadlineAt))
	}
	if op.Outcome != "" {
		row(w, "Outcome:", op.Outcome)
	}
	row(w, "Run:", op.WorkflowID+" "+op.RunID)
	writePhases(w, op.Phases, e.clock.now())
	if h := hint(t, op); h != "" {
		fmt.Fprintln(w)
		row(w, "What to do:", h)
	}
	e.writeStuck(w, t, op)
}

func writePhases(w io.Writer, phases []lifecycle.Phase, now time.Time) {
	if len(phases) == 0 {
		return
	}
	fmt.Fprintln(w)
	row(w, "PHASE", "STATE", "TOOK", "ATTEMPT", "REASON")
	for _, p := range phases {
		row(w, p.Name, string(p.State), dash(elapsed(p.StartedAt, p.EndedAt, now)), strconv.Itoa(p.Attempt), dash(p.Reason))
	}
}

func (e *printer) writeStuck(w io.Writer, t target, op lifecycle.Operation) {
	s := op.Stuck
	if s == nil {
		return
	}
	fmt.Fprintln(w)
	row(w, "Waiting on:", string(s.WaitingOn))
	row(w, "Because:", fmt.Sprintf("%s (%s)", s.Message, s.Reason))
	row(w, "Since:", e.stamp(s.Since))
	row(w, "Likely cause:", dash(s.Cause))
	row(w, "Next:", nextCommand(t, op))
	for i, o := range s.Options {
		label := ""
		if i == 0 {
			label = "Options:"
		}
		row(w, label, fmt.Sprintf("%s: %s", o.Does, fillNode(o.Command, t.name())))
	}
}
