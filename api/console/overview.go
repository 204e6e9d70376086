package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func overviewRoutes() []Route { return []Route{shared("", overview)} }

// Rows of the tables of the overview. The lists behind them have all.
const (
	maxAttention = 100
	maxProgress  = 50
	maxDecided   = 20
)

// overviewPage is the data of the template overview. Its parts are read apart: one that cannot
// be read says so, and the others are shown.
type overviewPage struct {
	Attention  []attention
	More       int
	Faults     []wire.ControlPlaneFault
	StuckError string

	Progress      []progress
	MoreProgress  int
	ProgressError string

	Fleet      fleetTable
	Ended      []insight.OutcomeCount
	FleetError string

	Decided      []audit.Row
	DecidedError string
}

// attention is a row of what needs attention: an operation, or a node without one.
type attention struct {
	NodeID, Host string
	OperationID  string
	Action       string
	Phase        string
	Status       string
	WaitingOn    lifecycle.Attention
	Since        time.Time
	Reason       string
	Message      string
	Cause        string
	Retries      bool
	Options      []option
	WebURL       string
}

// progressFields are the fields of an operation that the overview shows.
const progressFields = "operation_id,node_id,host,action,status,phase,actor,started_at,deadline_at"

// progress is a row of the operations in progress.
type progress struct {
	wire.OperationSummary

	// Left is the time until the phase's budget ends, negative after it.
	Left time.Duration
	// Number is the number of the phase in the operation's plan, and Phases that of all; 0 if it
	// is not known.
	Number, Phases int
}

// Late reports whether the phase is past its budget.
func (p progress) Late() bool { return p.DeadlineAt != nil && p.Left < 0 }

// overview shows what waits for a person first, then what is in progress, the fleet, and the last
// day.
func overview(r *request) (view, error) {
	var page overviewPage
	var parts parts
	parts.Go(func() {
		list, err := fetchShared[wire.StuckList](r, "/stuck", url.Values{"limit": {fmt.Sprint(maxAttention)}})
		page.stuck(r, list)
		page.StuckError = problem(err)
	})
	parts.Go(func() {
		list, err := fetchShared[wire.OperationList](r, "/operations", url.Values{"open": {"true"}, "limit": {"1000"}, "fields": {progressFields}})
		page.progress(r, list.Operations)
		page.ProgressError = problem(err)
	})
	parts.Go(func() {
		fleet, err := fetchShared[insight.Fleet](r, "/fleet", nil)
		page.Fleet, page.Ended, page.FleetError = tableOf(fleet.Nodes), fleet.Ended, problem(err)
	})
	parts.Go(func() {
		list, err := fetchShared[wire.AuditPage](r, "/audit", url.Values{"action": {audit.Decision}, "since": {"24h"}, "limit": {"200"}})
		page.decided(list.Events)
		page.DecidedError = problem(err)
	})
	parts.Wait()
	return view{Template: "overview", Title: "Overview", Nav: "Overview", Watch: watchAll, Data: page}, nil
}

// problem is the text of an error in a part of a page, empty for nil.
func problem(err error) string {
	if err == nil {
		return ""
	}
	return schema.AsError(err).Message
}

// stuck adds the rows of what needs attention, oldest first.
func (p *overviewPage) stuck(r *request, list wire.StuckList) {
	p.Faults = list.Faults
	for _, s := range list.Stuck {
		p.Attention = append(p.Attention, attentionOf(r, s))
	}
	for _, n := range list.Nodes {
		p.Attention = append(p.Attention, attentionOfNode(n))
	}
	slices.SortStableFunc(p.Attention, func(a, b attention) int { return a.Since.Compare(b.Since) })
	shown := min(len(p.Attention), maxAttention)
	p.More = len(p.Attention) - shown + list.More + list.MoreNodes
	p.Attention = p.Attention[:shown]
}

func attentionOf(r *request, s wire.StuckOperation) attention {
	a := attention{NodeID: s.NodeID, Host: s.Host, OperationID: s.OperationID, Action: string(s.Action), Phase: s.Phase, Status: string(s.Status),
		WaitingOn: s.WaitingOn, Since: s.StartedAt, WebURL: s.WebURL}
	if s.Stuck == nil { // overdue
		a.Reason, a.Message = "overdue", "the phase is past its budget and has neither parked nor ended"
		a.Since = *cmp.Or(s.DeadlineAt, &s.StartedAt)
		return a
	}
	a.Since, a.Reason, a.Message, a.Cause, a.Retries = s.Stuck.Since, s.Stuck.Reason, s.Stuck.Message, s.Stuck.Cause, s.Stuck.Retrying != nil
	if s.ProbableCause != nil {
		a.Cause = s.ProbableCause.Summary
	}
	a.Options = optionsOf(r, s.OperationID, s.Host, *s.Stuck)
	return a
}

func attentionOfNode(n stuck.Node) attention {
	a := attention{NodeID: n.NodeID, Host: n.Host, OperationID: n.OperationID, Action: string(n.Action), Phase: n.Stuck.Phase, Status: string(n.State),
		WaitingOn: n.Stuck.WaitingOn, Since: n.Stuck.Since, Reason: n.Stuck.Reason, Message: n.Stuck.Message, Cause: n.Stuck.Cause, WebURL: n.WebURL}
	for _, o := range n.Stuck.Options {
		a.Options = append(a.Options, option{Option: o})
	}
	if len(a.Options) == 0 && n.Stuck.Next != "" {
		a.Options = []option{{Option: lifecycle.Option{Command: n.Stuck.Next}}}
	}
	return a
}

// progress adds the operations that are in progress, the longest first.
func (p *overviewPage) progress(r *request, all []wire.OperationSummary) {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b wire.OperationSummary) int { return a.StartedAt.Compare(b.StartedAt) })
	shown := min(len(all), maxProgress)
	p.MoreProgress = len(all) - shown
	for _, o := range all[:shown] {
		row := progress{OperationSummary: o}
		if o.DeadlineAt != nil {
			row.Left = o.DeadlineAt.Sub(r.Now)
		}
		row.Number, row.Phases = numberOf(o)
		p.Progress = append(p.Progress, row)
	}
}

// decided keeps the decisions that ran a phase without its check, or left it out.
func (p *overviewPage) decided(events []audit.Row) {
	for _, e := range events {
		d := e.Detail["decision"]
		if (d == string(lifecycle.DecisionForce) || d == string(lifecycle.DecisionSkip)) && len(p.Decided) < maxDecided {
			p.Decided = append(p.Decided, e)
		}
	}
}

// fleetTable has the nodes and GPUs of each region and SKU by state.
type fleetTable struct {
	States []lifecycle.NodeState
	Rows   []fleetRow
	Total  fleetRow
}

// fleetRow is a row of the table. Cells are in the order of its states.
type fleetRow struct {
	Region, SKU string
	Cells       []fleetCell
	All         fleetCell
}

// fleetCell counts the nodes in a state and their GPUs.
type fleetCell struct {
	State       lifecycle.NodeState
	Nodes, GPUs int
}

func (c *fleetCell) add(n insight.NodeCount) {
	c.Nodes += n.Nodes
	c.GPUs += n.GPUs
}

// tableOf arranges the counts. Only states that occur are columns.
func tableOf(counts []insight.NodeCount) (t fleetTable) {
	for _, s := range lifecycle.NodeStates() {
		if slices.ContainsFunc(counts, func(n insight.NodeCount) bool { return n.State == s }) {
			t.States = append(t.States, s)
		}
	}
	for _, n := range counts {
		if !slices.Contains(t.States, n.State) { // of a newer version
			t.States = append(t.States, n.State)
		}
	}
	cells := func() (out []fleetCell) {
		for _, s := range t.States {
			out = append(out, fleetCell{State: s})
		}
		return out
	}
	t.Total.Cells = cells()
	counts = slices.SortedStableFunc(slices.Values(counts), func(a, b insight.NodeCount) int {
		return cmp.Or(strings.Compare(a.Region, b.Region), strings.Compare(a.SKU, b.SKU))
	})
	for _, n := range counts {
		if k := len(t.Rows); k == 0 || t.Rows[k-1].Region != n.Region || t.Rows[k-1].SKU != n.SKU {
			t.Rows = append(t.Rows, fleetRow{Region: n.Region, SKU: n.SKU, Cells: cells()})
		}
		row, i := &t.Rows[len(t.Rows)-1], slices.Index(t.States, n.State)
		for _, c := range []*fleetCell{&row.Cells[i], &row.All, &t.Total.Cells[i], &t.Total.All} {
			c.add(n)
		}
	}
	return t
}
