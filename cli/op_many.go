package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// decideParallel is the default number of operations that a bulk decision processes at
// a time.
const decideParallel = 8

// manyOptions are the flags that make a decision one about many operations.
type manyOptions struct {
	selector *string
	reasons  *[]string
	actions  *[]string
	harmful  bool
	dryRun   bool
	parallel int
}

// add adds the flags.
func (o *manyOptions) add(c *cobra.Command) {
	f := c.Flags()
	f.FuncP("selector", "l", "decide about every parked operation on a node that matches `SELECTOR`, for example rack=r7,tier!=test", optional(&o.selector))
	addStuckReason(c, &o.reasons, "decide about every operation parked for one of these `REASONS`, for example service_unavailable")
	addFilter(c, &o.actions, "action", "decide about every parked operation with one of these `ACTIONS`", actionNames()...)
	f.BoolVar(&o.harmful, "allow-harm", false, "decide also where the decision may kill workloads or cannot be undone")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be decided; change nothing")
	f.IntVar(&o.parallel, "max-parallel", decideParallel, "how many operations to decide about at a time")
}

// bulkHelp documents the flags.
const bulkHelp = `

With --selector, --stuck-reason or --action it decides about every parked operation that
matches. It prints what the decision does and asks for confirmation first. It leaves out
operations that do not have the decision among their options, and without --allow-harm
those where it may kill workloads or cannot be undone. Each decision is valid only for the
park that was listed. Run the same command again to continue after an interrupt or a
failure. It needs the admin API.

The exit code is 1 if a decision failed, 3 if a decision was left out because of its harm,
5 if one was not sent, or is applied later: Temporal stored a cancel because no worker
responded, or the operation accepted a decision while the database was unavailable.

` + selectorHelp

// The outcomes of a decision about one of many operations.
const (
	decideTaken    bulkOutcome = "decided"      // the operation took the decision
	decideStored   bulkOutcome = "stored"       // Temporal stored the cancel, for when a worker is up
	decideAccepted bulkOutcome = "accepted"     // the operation applies it when the database is available
	decideOutdated bulkOutcome = "outdated"     // the operation continued, ended or parked again before
	decideRestored bulkOutcome = "rehydrated"   // the operation is recorded as failed
	decideRunOpen  bulkOutcome = "run_open"     // the operation continues, so there is nothing to rehydrate
	decideNoOption bulkOutcome = "not_possible" // it is not among the operation's options
	decideHarmful  bulkOutcome = "harmful"      // left out without --allow-harm
	decideNotSent  bulkOutcome = "not_sent"     // interrupted before its turn
)

// decideRow is one operation of the result.
type decideRow struct {
	OperationID string           `json:"operation_id"`
	NodeID      string           `json:"node_id"`
	Host        string           `json:"host"`
	Action      lifecycle.Action `json:"action"`
	Phase       string           `json:"phase"`
	StuckReason string           `json:"stuck_reason"`
	StuckSince  time.Time        `json:"stuck_since"`
	Harm        lifecycle.Harm   `json:"harm,omitempty"`
	Does        string           `json:"does,omitempty"`
	Outcome     bulkOutcome      `json:"outcome"`
	Error       string           `json:"error,omitempty"`
	// Next is the command for what a rehydrated operation left on its node.
	Next string `json:"next,omitempty"`
}

func (r *decideRow) name() string         { return cmp.Or(r.Host, r.NodeID) }
func (r *decideRow) outcome() bulkOutcome { return r.Outcome }

func (r *decideRow) details() (text string) {
	if r.Error != "" {
		text = ": " + r.Error
	}
	if r.Next != "" {
		text += "; next: " + r.Next
	}
	return text
}

// decideWork is a command about many operations.
type decideWork struct {
	decision lifecycle.Decision
	// command is the command line, request is one request of it, and matched what it lists.
	command, request, matched string
	// hint follows the message that nothing matches.
	hint string
	// list returns the operations that match. The rows to work on have the outcome
	// decideNotSent.
	list func(ctx context.Context) ([]*decideRow, error)
	// one sends the request about one operation. An error is the outcome bulkFailed.
	one func(ctx context.Context, r *decideRow) (bulkOutcome, error)
}

// decideMany is one run of a decideWork.
type decideMany struct {
	decideWork
	bulkRun[*decideRow]
}

// runMany prints the plan, asks, sends the requests and prints the outcomes.
func (e *env) runMany(ctx context.Context, w decideWork, o manyOptions, yes bool) error {
	m := &decideMany{decideWork: w, bulkRun: bulkRun[*decideRow]{env: e, noun: "operation"}}
	if err := m.find(ctx, o.dryRun); err != nil {
		return err
	}
	m.plan()
	if !o.dryRun && len(m.chosen) > 0 {
		what := fmt.Sprintf("%s %s", m.decision, text.Count(len(m.chosen), m.noun))
		if err := e.confirm(ctx, m.command, what, yes); err != nil {
			return err
		}
		m.work(ctx, o.parallel, m.complete)
	}
	summary, err := m.print()
	switch {
	case err != nil:
		return err
	case o.dryRun:
		return e.nothingChanged(summary[decideHarmful], m.request)
	}
	return m.exit(summary)
}

// find lists the operations that match, oldest first, and chooses those to work on.
func (m *decideMany) find(ctx context.Context, dryRun bool) (err error) {
	if m.rows, err = m.list(ctx); err != nil {
		return err
	}
	if len(m.rows) == 0 {
		return schema.NewError(schema.KindNotFound, "no %s matches%s", m.matched, m.hint).WithNext("gpuaas stuck")
	}
	slices.SortStableFunc(m.rows, func(a, b *decideRow) int { return a.StuckSince.Compare(b.StuckSince) })
	for _, r := range m.rows {
		if r.Outcome != decideNotSent {
			continue
		}
		if dryRun {
			r.Outcome = bulkPlanned
		}
		m.chosen = append(m.chosen, r)
	}
	return nil
}

// rowOf is the row of an operation for a decision. An operation that does not have the
// decision among its options is not possible, and a harmful one needs --allow-harm.
func rowOf(op wire.OperationSummary, d lifecycle.Decision, allowHarm bool) *decideRow {
	r := &decideRow{OperationID: op.OperationID, NodeID: op.NodeID, Host: op.Host, Action: op.Action, Phase: op.Stuck.Phase,
		StuckReason: op.Stuck.Reason, StuckSince: op.Stuck.Since, Outcome: decideNoOption}
	i := slices.IndexFunc(op.Stuck.Options, func(o lifecycle.Option) bool { return o.Decision == d })
	if i < 0 {
		return r
	}
	r.Does, r.Harm, r.Outcome = op.Stuck.Options[i].Does, op.Stuck.Options[i].Harm, decideNotSent
	if r.Harm != lifecycle.HarmNone && !allowHarm {
		r.Outcome = decideHarmful
	}
	return r
}

// complete sends the request about one operation and completes its row. An unavailable
// service starts no further one.
func (m *decideMany) complete(ctx context.Context, r *decideRow) {
	outcome, err := m.one(ctx, r)
	if r.Outcome = outcome; err != nil {
		r.Outcome, r.Error = bulkFailed, target{id: r.NodeID, host: r.Host}.inError(err).Error()
		if schema.KindOf(err) == schema.KindServiceUnavailable {
			m.stopped.Store(true)
		}
	}
}

// runOpDecideMany decides about all parked operations that match.
func runOpDecideMany(ctx context.Context, e *env, d decision, o opDecideOptions) error {
	m := opDecisions{control: e.apiControl(), decision: d.name, options: o}
	return e.runMany(ctx, decideWork{decision: d.name, command: "gpuaas op " + string(d.name), request: "decision", matched: "parked operation",
		hint: reasonNote(o.reasons), list: m.list, one: m.one}, o.manyOptions, o.yes)
}

// opDecisions is the decideWork of a decision about parked operations.
type opDecisions struct {
	control  apiControl
	decision lifecycle.Decision
	options  opDecideOptions
}

func (m opDecisions) list(ctx context.Context) (rows []*decideRow, err error) {
	o := m.options
	ops, err := listOperations(ctx, m.control.Client, adminclient.ListOperationsParams{Selector: o.selector, Reason: o.reasons, Action: o.actions,
		Status: &[]string{string(lifecycle.OperationParked)}}, 0)
	for _, op := range ops {
		if op.Stuck != nil {
			rows = append(rows, rowOf(op, m.decision, o.harmful))
		}
	}
	return rows, err
}

// one sends the decision about one park. The same decision about the same park has the
// same idempotency key, so that a repeat is safe.
func (m opDecisions) one(ctx context.Context, r *decideRow) (bulkOutcome, error) {
	st := lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: r.OperationID, Action: r.Action}}
	key := schema.SHA256Hex([]byte(strings.Join([]string{string(m.decision), r.Phase, r.StuckSince.UTC().Format(time.RFC3339Nano), m.options.reason}, "\x00")))
	_, err := m.control.decide(ctx, st, lifecycle.ResolveRequest{Decision: m.decision, Reason: m.options.reason, Phase: r.Phase, StuckSince: &r.StuckSince}, key)
	switch {
	case schema.KindOf(err) == schema.KindDecisionOutdated:
		return decideOutdated, nil
	case schema.AsError(err) != nil && schema.AsError(err).Reason == lifecycle.ReasonCancelStored:
		return decideStored, nil
	case schema.AsError(err) != nil && schema.AsError(err).Reason == lifecycle.ReasonDecisionAccepted:
		return decideAccepted, nil
	}
	return decideTaken, err
}
