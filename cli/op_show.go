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
)

func newOpShow(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "show NODE", Short: "Show a node's operation",
		Long: `Shows the operation that runs on a node, or the last one that ran: its phases, what
it waits for, since when, and the command to type. When no worker answers, the
admin API's record is shown.`,
		Example: "  gpuaas op show gpu-17\n  gpuaas op show gpu-17 -o json | jq .operation.status",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runOpShow(c.Context(), e, args[0]) },
	}
}

func runOpShow(ctx context.Context, e *env, arg string) error {
	t, err := e.find(ctx, arg)
	if err != nil {
		return err
	}
	st, note, err := e.current(ctx, t)
	if err != nil {
		return err
	}
	if note != "" {
		e.say("note: %s", note)
	}
	return e.print(st, func(w io.Writer) { e.writeOperation(w, t, st) })
}

// current is the newest operation of a node: from the operation itself, else
// from the admin API's record with a note that says so.
func (e *env) current(ctx context.Context, t target) (st schema.OperationStatus, note string, err error) {
	lc, err := e.lifecycle(ctx)
	if err == nil {
		st, err = lc.Status(ctx, schema.NodeWorkflowID(t.id), "")
	}
	if err == nil {
		return st, "", nil
	}
	if rows, rowsErr := e.rows(ctx, t.id, false); rowsErr == nil && len(rows) > 0 {
		return statusOfRow(rows[0], schema.OperationOptions{}), secondHand(err), nil
	}
	if errors.Is(err, &schema.Error{Kind: schema.KindNotFound}) {
		err = noOperation(t, "no operation has run on %s")
	}
	return st, "", err
}

func noOperation(t target, format string) error {
	return schema.NewError(schema.KindNotFound, format, t.name()).WithNext("gpuaas node show " + t.name())
}

func (e *env) writeOperation(w io.Writer, t target, st schema.OperationStatus) {
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
	e.writeStuck(w, t, op.Stuck)
}

func writePhases(w io.Writer, phases []schema.Phase, now time.Time) {
	if len(phases) == 0 {
		return
	}
	fmt.Fprintln(w)
	row(w, "PHASE", "STATE", "TOOK", "ATTEMPT", "REASON")
	for _, p := range phases {
		row(w, p.Name, string(p.State), dash(elapsed(p.StartedAt, p.EndedAt, now)), strconv.Itoa(p.Attempt), dash(p.Reason))
	}
}

func (e *env) writeStuck(w io.Writer, t target, s *schema.Stuck) {
	if s == nil {
		return
	}
	fmt.Fprintln(w)
	row(w, "Waits for:", string(s.Attention))
	row(w, "Because:", fmt.Sprintf("%s (%s)", s.Message, s.Reason))
	row(w, "Since:", e.stamp(s.Since))
	row(w, "Likely cause:", dash(s.Cause))
	row(w, "Next:", nextCommand(t, s))
}
