package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuckEvery is how often stuck --watch looks again.
const stuckEvery = 5 * time.Second

// reasonOverdue is the reason of an operation that runs longer than its phases
// may and has not parked: no worker moves it.
const reasonOverdue = "overdue"

type stuckOptions struct {
	watch bool
}

// stuckRow is one operation that waits for somebody.
type stuckRow struct {
	NodeID      string                   `json:"node_id"`
	Host        string                   `json:"host"`
	State       lifecycle.NodeState      `json:"state,omitempty"`
	Action      lifecycle.Action         `json:"action"`
	Status      lifecycle.OperationState `json:"status"`
	Phase       string                   `json:"phase"`
	Reason      string                   `json:"reason"`
	Message     string                   `json:"message,omitempty"`
	Since       time.Time                `json:"since"`
	Owner       lifecycle.Attention      `json:"owner"`
	Cause       string                   `json:"cause,omitempty"`
	Next        string                   `json:"next"`
	OperationID string                   `json:"operation_id"`
	WorkflowID  string                   `json:"workflow_id"`
	RunID       string                   `json:"run_id"`
}

// stuckReport is what stuck prints for machines.
type stuckReport struct {
	Stuck []stuckRow `json:"stuck"`
	// Reclaimer is set when the schedule that gives up vanished nodes' tasks does
	// not run: what they hold shows as stuck late or never.
	Reclaimer *temporal.ScheduleHealth `json:"reclaimer,omitempty"`
}

func newStuck(e *env) *cobra.Command {
	var o stuckOptions
	c := &cobra.Command{
		Use: "stuck", Short: "List every operation that waits for somebody",
		Long: `Lists every parked or overdue operation: the node, where it stands, why and since
when it waits, who must act, and the command to type next. It asks Temporal and
the admin API, and goes on with one of them. It also says when the schedule of the
reclaimer, which gives up the tasks of nodes that vanished, does not run.`,
		Example: "  gpuaas stuck\n  gpuaas stuck --watch\n  gpuaas stuck -o json | jq -r '.stuck[].next'",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runStuck(c.Context(), e, o) },
	}
	c.Flags().BoolVarP(&o.watch, "watch", "w", false, "look again every 5 seconds until interrupted")
	return c
}

func runStuck(ctx context.Context, e *env, o stuckOptions) error {
	for {
		err := e.showStuck(ctx, o.watch && e.tty.out)
		switch {
		case o.watch && interrupted(ctx):
			return nil
		case err != nil || !o.watch:
			return err
		}
		select {
		case <-ctx.Done():
		case <-e.clock.after(stuckEvery):
		}
		if interrupted(ctx) {
			return nil
		}
	}
}

func interrupted(ctx context.Context) bool { return ctx.Err() != nil }

// showStuck prints the list once, on a cleared screen if asked to.
func (e *env) showStuck(ctx context.Context, clearScreen bool) error {
	rows, err := e.stuckRows(ctx)
	if err != nil {
		return err
	}
	report := stuckReport{Stuck: rows, Reclaimer: e.reclaimer(ctx)}
	if clearScreen {
		fmt.Fprint(e.stdout, "\x1b[H\x1b[2J")
	}
	return e.printStuck(report)
}

// reclaimer is how the reclaimer's schedule does, nil when it runs, or when
// Temporal is away, which the rows tell already.
func (e *env) reclaimer(ctx context.Context) *temporal.ScheduleHealth {
	lc, err := e.lifecycle(ctx)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupBudget)
	defer cancel()
	h, err := lc.ReclaimSchedule(ctx)
	switch {
	case err != nil && schema.KindOf(err) != schema.KindServiceUnavailable:
		e.say("warning: how the reclaimer does is not known: %s", err)
		return nil
	case err != nil, h.State == temporal.ScheduleRuns:
		return nil
	}
	return &h
}

func (e *env) printStuck(report stuckReport) error {
	rows := report.Stuck
	if h := report.Reclaimer; h != nil {
		e.say("warning: %s", h.Message)
		e.say("next:  %s", h.Next)
	}
	if len(rows) == 0 {
		e.say("nothing is stuck")
		if e.flags.output == formatTable {
			return nil
		}
	}
	now := e.clock.now()
	return e.print(report, func(w io.Writer) {
		row(w, "NODE", "STATE", "REASON", "SINCE", "OWNER", "NEXT")
		for _, r := range rows {
			row(w, cmp.Or(r.Host, r.NodeID), r.place(), r.Reason, span(now.Sub(r.Since)), string(r.Owner), r.Next)
		}
	})
}

// place is where the operation stands, for example draining (drain).
func (r stuckRow) place() string {
	state := cmp.Or(string(r.State), string(r.Action))
	if r.Phase == "" {
		return state
	}
	return fmt.Sprintf("%s (%s)", state, r.Phase)
}

// stuckRows merges what Temporal and the admin API know, oldest first. One of
// the two is enough.
func (e *env) stuckRows(ctx context.Context) ([]stuckRow, error) {
	parked, temporalErr := e.parkedOperations(ctx)
	open, apiErr := e.rows(ctx, "", true)
	switch {
	case isUsage(apiErr):
		return nil, apiErr
	case temporalErr != nil && apiErr != nil:
		return nil, fmt.Errorf("%w; %w", temporalErr, apiErr)
	case temporalErr != nil:
		e.say("warning: only what the admin API knows: %s", temporalErr)
	case apiErr != nil:
		e.say("warning: only what Temporal knows: %s", apiErr)
	}
	rows := map[string]stuckRow{}
	for _, o := range open {
		if r, ok := e.stuckOfRow(o); ok {
			rows[r.OperationID] = r
		}
	}
	for _, st := range parked {
		r := stuckOfStatus(st)
		if known, ok := rows[r.OperationID]; ok {
			r = r.merged(known, len(st.Operation.Phases) > 0)
		}
		rows[r.OperationID] = r
	}
	return sortedRows(rows), nil
}

func (e *env) parkedOperations(ctx context.Context) ([]lifecycle.OperationStatus, error) {
	lc, err := e.lifecycle(ctx)
	if err != nil {
		return nil, err
	}
	return lc.Parked(ctx)
}

// merged joins what Temporal and the database know of one operation. Without a
// worker Temporal knows only that it waits, so the database's reason stands; what
// to do next is Temporal's to say all the same, since a worker comes first.
func (r stuckRow) merged(known stuckRow, answered bool) stuckRow {
	if answered {
		r.Host = cmp.Or(r.Host, known.Host)
		return r
	}
	known.Next, known.State = r.Next, r.State
	return known
}

func sortedRows(rows map[string]stuckRow) []stuckRow {
	out := make([]stuckRow, 0, len(rows))
	for _, r := range rows {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b stuckRow) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.OperationID, b.OperationID))
	})
	return out
}

func stuckOfStatus(st lifecycle.OperationStatus) stuckRow {
	op := st.Operation
	r := stuckRow{NodeID: st.Node.NodeID, Host: st.Node.Host, State: st.Node.State, Action: op.Action, Status: op.Status,
		OperationID: op.OperationID, WorkflowID: op.WorkflowID, RunID: op.RunID}
	if op.StartedAt != nil {
		r.Since = *op.StartedAt
	}
	return r.with(op.Stuck)
}

// stuckOfRow is ok for a row that is parked, or that runs longer than all of its
// phases may.
func (e *env) stuckOfRow(o wire.OperationSummary) (stuckRow, bool) {
	r := stuckRow{NodeID: o.NodeID, Host: o.Host, Action: o.Action, Status: o.Status, Phase: o.Phase, Owner: o.WaitingOn,
		OperationID: o.OperationID, WorkflowID: o.WorkflowID, RunID: o.RunID, Since: o.StartedAt}
	if o.Stuck != nil || o.Status == lifecycle.OperationParked {
		return r.with(o.Stuck), true
	}
	// The row does not say whether a retire drains first: count it as if.
	due := o.StartedAt.Add(budgetOf(o.Action, lifecycle.Options{Drain: o.Action == lifecycle.ActionRetire}))
	if o.Status.Ended() || !due.Before(e.clock.now()) {
		return r, false
	}
	return r.with(&lifecycle.Stuck{Phase: o.Phase, WaitingOn: lifecycle.AttentionOperator, Reason: reasonOverdue,
		Message: "it runs longer than its phases may and has not parked", Since: due,
		Cause: "no worker is up", Next: lifecycle.OpCommand("show", o.Action, "NODE")}), true
}

// with fills in why the operation waits.
func (r stuckRow) with(s *lifecycle.Stuck) stuckRow {
	t := target{id: r.NodeID, host: r.Host}
	r.Next = nextCommand(t, lifecycle.Operation{Action: r.Action, Stuck: s})
	if s == nil {
		r.Owner = cmp.Or(r.Owner, lifecycle.AttentionOperator)
		return r
	}
	r.Phase, r.Reason, r.Message, r.Since, r.Owner, r.Cause = s.Phase, s.Reason, s.Message, s.Since, s.WaitingOn, s.Cause
	return r
}
