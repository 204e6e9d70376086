package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type opShowOptions struct {
	reissue bool
}

func newOpShow(e *env) *cobra.Command {
	var o opShowOptions
	c := &cobra.Command{
		Use: "show NODE", Short: "Show a node's operation",
		Long: `Shows the operation that holds a node, or the last one that did: its phases, what
it waits for, since when, and the command to type. When no worker answers, the
admin API's record is shown. A reissue-enrollment holds no node and runs beside:
--reissue shows it.`,
		Example: "  gpuaas op show gpu-17\n  gpuaas op show gpu-17 --reissue\n  gpuaas op show gpu-17 -o json | jq .operation.status",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runOpShow(c.Context(), e, args[0], o) },
	}
	addReissue(c, &o.reissue)
	return c
}

// addReissue adds --reissue, for the verbs that work on a running operation.
func addReissue(c *cobra.Command, reissue *bool) {
	c.Flags().BoolVar(reissue, "reissue", false, "mean the node's reissue-enrollment, which runs beside what holds the node")
}

func runOpShow(ctx context.Context, e *env, arg string, o opShowOptions) error {
	t, err := e.find(ctx, arg)
	if err != nil {
		return err
	}
	st, note, err := e.current(ctx, t, "show", o.reissue)
	if err != nil {
		return err
	}
	if note != "" {
		e.say("note: %s", note)
	}
	if !o.reissue && e.reissueRuns(ctx, t) {
		e.say("note: a reissue runs beside it: %s", lifecycle.OpCommand("show", lifecycle.ActionReissueEnrollment, t.name()))
	}
	return e.print(st, func(w io.Writer) { e.writeOperation(w, t, st) })
}

// current is the newest operation that holds a node, or its newest reissue: from
// the operation itself, else from the admin API's record with a note that says
// so. verb is what the caller is about, for the refusal when there is none.
func (e *env) current(ctx context.Context, t target, verb string, reissue bool) (st lifecycle.OperationStatus, note string, err error) {
	lc, err := e.lifecycle(ctx)
	if err == nil {
		st, err = lc.Status(ctx, workflowID(t, reissue), "")
	}
	if err == nil {
		return st, "", nil
	}
	rows, rowsErr := e.rows(ctx, t.id, false)
	i := slices.IndexFunc(rows, func(o wire.OperationSummary) bool { return isReissue(o.Action) == reissue })
	if rowsErr == nil && i >= 0 {
		return statusOfRow(rows[i], lifecycle.Options{}), secondHand(err), nil
	}
	if errors.Is(err, &schema.Error{Kind: schema.KindNotFound}) {
		err = e.noOperation(ctx, t, verb, "has run", reissue)
	}
	return st, "", err
}

func isReissue(a lifecycle.Action) bool { return a == lifecycle.ActionReissueEnrollment }

func workflowID(t target, reissue bool) string {
	if reissue {
		return lifecycle.ReissueWorkflowID(t.host, t.id)
	}
	return lifecycle.NodeWorkflowID(t.host, t.id)
}

// noOperation says that there is none, and of a reissue that may be meant.
func (e *env) noOperation(ctx context.Context, t target, verb, has string, reissue bool) error {
	what, next := "operation", "gpuaas node show "+t.name()
	switch {
	case reissue:
		what = "reissue"
	case e.reissueRuns(ctx, t):
		next = lifecycle.OpCommand(verb, lifecycle.ActionReissueEnrollment, t.name())
	}
	return schema.NewError(schema.KindNotFound, "no %s %s on %s", what, has, t.name()).WithNext(next)
}

// reissueRuns reports whether a reissue of the node is known to run.
func (e *env) reissueRuns(ctx context.Context, t target) bool {
	lc, err := e.lifecycle(ctx)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, statusBudget)
	defer cancel()
	st, err := lc.Status(ctx, lifecycle.ReissueWorkflowID(t.host, t.id), "")
	return err == nil && !st.Operation.Status.Ended()
}

func (e *env) writeOperation(w io.Writer, t target, st lifecycle.OperationStatus) {
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
	e.writeStuck(w, op.Stuck, nextCommand(t, op))
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

func (e *env) writeStuck(w io.Writer, s *lifecycle.Stuck, next string) {
	if s == nil {
		return
	}
	fmt.Fprintln(w)
	row(w, "Waits for:", string(s.WaitingOn))
	row(w, "Because:", fmt.Sprintf("%s (%s)", s.Message, s.Reason))
	row(w, "Since:", e.stamp(s.Since))
	row(w, "Likely cause:", dash(s.Cause))
	row(w, "Next:", next)
}
