package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
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

// many reports whether the decision is about many operations.
func (o *manyOptions) many() bool { return o.selector != nil || o.reasons != nil || o.actions != nil }

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
5 if one was not sent.

` + selectorHelp

// decideOutcome is the result of a decision about one of many operations.
type decideOutcome string

const (
	decidePlanned  decideOutcome = "planned"      // --dry-run
	decideTaken    decideOutcome = "decided"      // the operation took the decision
	decideOutdated decideOutcome = "outdated"     // the operation continued, ended or parked again before
	decideNoOption decideOutcome = "not_possible" // it is not among the operation's options
	decideHarmful  decideOutcome = "harmful"      // left out without --allow-harm
	decideFailed   decideOutcome = "failed"
	decideNotSent  decideOutcome = "not_sent" // interrupted before its turn
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
	Outcome     decideOutcome    `json:"outcome"`
	Error       string           `json:"error,omitempty"`
	stuck       *lifecycle.Stuck
}

// decideMany is a decision about many operations.
type decideMany struct {
	env     *env
	control apiControl
	d       decision
	options opDecideOptions

	rows    []*decideRow // each is changed by its own goroutine
	chosen  []*decideRow // those of rows to decide about
	ended   atomic.Int64
	stopped atomic.Bool // after a service was unavailable
	mu      sync.Mutex  // orders the messages
}

func runOpDecideMany(ctx context.Context, e *env, d decision, o opDecideOptions) error {
	m := &decideMany{env: e, control: e.apiControl(), d: d, options: o}
	if err := m.find(ctx); err != nil {
		return err
	}
	m.plan()
	if o.dryRun {
		if err := m.print(); err != nil {
			return err
		}
		return e.nothingChanged(m.summary()[decideHarmful], "decision")
	}
	if len(m.chosen) > 0 {
		what := fmt.Sprintf("%s %s", d.name, count(len(m.chosen), "operation"))
		if err := e.confirm(ctx, "gpuaas op "+string(d.name), what, o.yes); err != nil {
			return err
		}
		m.send(ctx)
	}
	if err := m.print(); err != nil {
		return err
	}
	return m.exit()
}

// find lists the parked operations that match, oldest first, and chooses those to decide
// about.
func (m *decideMany) find(ctx context.Context) error {
	o := m.options
	ops, err := listOperations(ctx, m.control.Client, adminclient.ListOperationsParams{Selector: o.selector, Reason: o.reasons, Action: o.actions,
		Status: &[]string{string(lifecycle.OperationParked)}}, 0)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if op.Stuck != nil {
			m.rows = append(m.rows, m.row(op))
		}
	}
	if len(m.rows) == 0 {
		return schema.NewError(schema.KindNotFound, "no parked operation matches").WithNext("gpuaas stuck")
	}
	slices.SortStableFunc(m.rows, func(a, b *decideRow) int { return a.StuckSince.Compare(b.StuckSince) })
	for _, r := range m.rows {
		if r.Outcome == decideNotSent || r.Outcome == decidePlanned {
			m.chosen = append(m.chosen, r)
		}
	}
	return nil
}

func (m *decideMany) row(op wire.OperationSummary) *decideRow {
	r := &decideRow{OperationID: op.OperationID, NodeID: op.NodeID, Host: op.Host, Action: op.Action, Phase: op.Stuck.Phase,
		StuckReason: op.Stuck.Reason, StuckSince: op.Stuck.Since, stuck: op.Stuck, Outcome: decideNoOption}
	i := slices.IndexFunc(op.Stuck.Options, func(o lifecycle.Option) bool { return o.Decision == m.d.name })
	if i < 0 {
		return r
	}
	r.Does, r.Harm = op.Stuck.Options[i].Does, op.Stuck.Options[i].Harm
	switch {
	case r.Harm != lifecycle.HarmNone && !m.options.harmful:
		r.Outcome = decideHarmful
	case m.options.dryRun:
		r.Outcome = decidePlanned
	default:
		r.Outcome = decideNotSent
	}
	return r
}

// send sends the decisions, some at a time. An interrupt or an unavailable service starts
// no further one.
func (m *decideMany) send(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(m.options.parallel)
	for _, r := range m.chosen {
		group.Go(func() error {
			if ctx.Err() == nil && !m.stopped.Load() {
				m.one(ctx, r)
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // each row has its own error
}

// one sends the decision about one operation and completes its row. The same decision
// about the same park has the same idempotency key, so that a repeat is safe.
func (m *decideMany) one(ctx context.Context, r *decideRow) {
	st := lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: r.OperationID, Action: r.Action, Stuck: r.stuck}}
	key := schema.SHA256Hex([]byte(strings.Join([]string{string(m.d.name), r.Phase, r.StuckSince.UTC().Format(time.RFC3339Nano), m.options.reason}, "\x00")))
	_, err := m.control.decide(ctx, st, m.d.name, m.options.reason, key)
	t := target{id: r.NodeID, host: r.Host}
	switch {
	case err == nil:
		r.Outcome = decideTaken
	case schema.KindOf(err) == schema.KindDecisionOutdated:
		r.Outcome = decideOutdated
	default:
		r.Outcome, r.Error = decideFailed, t.inError(err).Error()
		if schema.KindOf(err) == schema.KindServiceUnavailable {
			m.stopped.Store(true)
		}
	}
	text := r.Outcome.words()
	if r.Error != "" {
		text += ": " + r.Error
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.env.message("[%d/%d] %s: %s", m.ended.Add(1), len(m.chosen), cmp.Or(r.Host, r.NodeID), text)
}
