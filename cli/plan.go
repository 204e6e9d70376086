package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// plan is the output of --dry-run: the phases of an operation, the workloads it would
// end, and the reasons for which it would be refused.
type plan struct {
	Action lifecycle.Action  `json:"action"`
	Node   lifecycle.NodeRef `json:"node"`
	Phases []planPhase       `json:"phases"`
	// History is how long whole operations took here, nil without history.
	History *insight.Duration `json:"history,omitempty"`
	// EndsAs is the node's state after success.
	EndsAs lifecycle.NodeState `json:"ends_as"`
	// Workloads are the names of the workloads that a drain would end.
	Workloads []string `json:"workloads"`
	// Warnings are those of the workloads, and of a release the fault that the node still has.
	Warnings []planWarning `json:"warnings,omitempty"`
	Blockers []planBlocker `json:"blockers"`
	Refused  bool          `json:"refused"`
}

// planWarning is what to know before a drain ends a workload of the plan, or before the operation.
type planWarning struct {
	Workload string `json:"workload,omitempty"`
	Warning  string `json:"warning"`
}

type planPhase struct {
	Name          string              `json:"name"`
	Title         string              `json:"title"`
	BudgetSeconds int64               `json:"budget_seconds"`
	WaitingOn     lifecycle.Attention `json:"waiting_on"`
	// History is how long the phase took here, nil without history.
	History *insight.Duration `json:"history,omitempty"`
}

// planBlocker is a reason for which the operation would be refused now.
type planBlocker struct {
	Code    schema.Kind `json:"code"`
	Message string      `json:"message"`
	// Next is the command that removes the reason, if there is one.
	Next string `json:"next,omitempty"`
}

// printPlan prints the plan of an action. A plan that would be refused ends with exit
// code 3.
// took is the history of the action on the node's provider.
func (e *console) printPlan(n wire.NodeView, provider machine.Info, a lifecycle.Action, o lifecycle.Options, took insight.DurationList) error {
	p := makePlan(n, provider, a, o)
	p.History = took.Of("")
	for i, s := range p.Phases {
		p.Phases[i].History = took.Of(s.Name)
	}
	if err := e.print(map[string]plan{"plan": p}, func(w io.Writer) { writePlan(w, p) }, n.Host); err != nil {
		return err
	}
	return e.nothingChanged(min(len(p.Blockers), 1), "operation")
}

// nothingChanged ends a dry run. refused is the number of things that would be refused.
func (e *console) nothingChanged(refused int, thing string) error {
	if refused > 0 {
		return &exitError{schema.ExitRefused, []string{text.Count(refused, thing) + " would be refused; nothing was changed"}}
	}
	e.message("nothing was changed")
	return nil
}

func makePlan(n wire.NodeView, provider machine.Info, a lifecycle.Action, o lifecycle.Options) plan {
	m, _ := lifecycle.PlanOf(a, o)
	m = m.On(provider).ForGPUs(n.GPUsTotal, o)
	p := plan{Action: a, Node: lifecycle.NodeRef{NodeID: n.ID, Host: n.Host, State: n.State},
		Phases: []planPhase{}, EndsAs: m.To, Workloads: []string{}, Blockers: planBlockers(n, provider, m, o)}
	for _, s := range m.Phases {
		p.Phases = append(p.Phases, planPhase{Name: s.Name, Title: s.Title, BudgetSeconds: int64(s.Budget / time.Second), WaitingOn: s.WaitingOn})
		if s.Name == lifecycle.PhaseDrain {
			p.drains(n, o)
		}
	}
	if warning := releaseWarning(n, a); warning != "" {
		p.Warnings = append(p.Warnings, planWarning{Warning: warning})
	}
	if o.CordonOnly {
		p.EndsAs = n.StartState()
	}
	if a == lifecycle.ActionRecover && slices.Equal(lifecycle.Rungs(o.Recovery), []recovery.Rung{recovery.RungQuarantine}) {
		p.EndsAs = m.Enter
	}
	p.Refused = len(p.Blockers) > 0
	return p
}

// releaseWarning is the warning before a node that still has a fault returns to service.
func releaseWarning(n wire.NodeView, a lifecycle.Action) string {
	faults := openFaults(n)
	if a != lifecycle.ActionRelease || len(faults) == 0 {
		return ""
	}
	return "the node still has a fault: " + clean(health.Summary(faults)) + "; health recovery may take it out of service again"
}

// drains adds what a drain does with the node's workloads: what it stops, and what blocks it unless
// it is forced.
func (p *plan) drains(n wire.NodeView, o lifecycle.Options) {
	p.Warnings = warnings(n)
	for i, name := range n.Blockers() {
		switch w := n.Workloads[i]; {
		case w.Kind == task.KindGPUProcess: // it may belong to a workload
			p.Warnings = append(p.Warnings, planWarning{name, "a drain waits for its end, and does not stop it"})
		case w.Stoppable():
			p.Workloads = append(p.Workloads, name)
		case !o.Force:
			p.Blockers = append(p.Blockers, planBlocker{Code: schema.KindNodeInUse, Message: name})
		}
	}
}

// warnings returns the warnings of a node's workloads.
func warnings(n wire.NodeView) (out []planWarning) {
	for i, name := range n.Blockers() {
		if w := n.Workloads[i].Warning; w != "" {
			out = append(out, planWarning{name, w})
		}
	}
	return out
}

func planBlockers(n wire.NodeView, provider machine.Info, m lifecycle.Plan, o lifecycle.Options) []planBlocker {
	out := []planBlocker{}
	superseded := n.Operation != nil && n.Operation.Status == lifecycle.OperationAbandoned && m.Holds
	if n.Operation != nil && !n.Operation.Status.Ended() && !superseded && m.ConflictsWith(n.Operation.Action) {
		out = append(out, planBlocker{schema.KindOperationInProgress,
			fmt.Sprintf("%s is in progress on this node (operation %s, by %s)", n.Operation.Action, n.Operation.OperationID, n.Operation.Actor),
			lifecycle.OpCommand("show", n.Operation.Action, n.Host)})
	}
	c := lifecycle.Candidate{Host: n.Host, State: n.StartState(), Provider: provider,
		Workloads: n.Blockers(), Lock: n.IdentityLock, OpenLedger: n.Instance != nil} // the claim reads the ledger, which is empty before the first instance
	if n.Instance != nil {
		c.Instance = n.Instance.State
	}
	if _, err := c.Admit(m.Action, o); err != nil {
		refusal := schema.AsError(err)
		out = append(out, planBlocker{refusal.Kind, fillNode(refusal.Message, n.Host), refusal.Next})
	}
	return out
}

// usually says how long something took in this installation.
func usually(d *insight.Duration) string {
	if d == nil {
		return "no history"
	}
	span := func(seconds float64) string {
		return lifecycle.Span(time.Duration(seconds * float64(time.Second)))
	}
	return fmt.Sprintf("median %s, p90 %s (of %d)", span(d.MedianSeconds), span(d.P90Seconds), d.Samples)
}

func writePlan(w io.Writer, p plan) {
	fmt.Fprintf(w, "Plan: %s %s, which is %s\n", p.Action, p.Node.Host, p.Node.State)
	for i, s := range p.Phases {
		row(w, fmt.Sprintf("  %d. %s", i+1, s.Title), "up to "+lifecycle.Span(time.Duration(s.BudgetSeconds)*time.Second), usually(s.History))
	}
	if p.History != nil {
		row(w, "  In all", "", usually(p.History))
	}
	if p.EndsAs != "" {
		otherwise := ""
		if p.Action == lifecycle.ActionRecover && p.EndsAs != lifecycle.NodeQuarantined {
			otherwise = "; if it is not repaired, it stays quarantined"
		}
		fmt.Fprintf(w, "Then the node is %s%s.\n", p.EndsAs, otherwise)
	}
	if len(p.Workloads) > 0 {
		fmt.Fprintln(w, "Workloads to stop:")
	}
	for _, name := range p.Workloads {
		row(w, "  - "+name)
	}
	if len(p.Warnings) > 0 {
		fmt.Fprintln(w, "Warnings:")
	}
	for _, warned := range p.Warnings {
		row(w, "  - "+strings.TrimPrefix(warned.Workload+": "+warned.Warning, ": "))
	}
	if p.Refused {
		fmt.Fprintln(w, "Blockers:")
	}
	for _, b := range p.Blockers {
		row(w, fmt.Sprintf("  - %s (%s)", b.Message, b.Code))
		if b.Next != "" {
			row(w, "    next: "+b.Next)
		}
	}
}
