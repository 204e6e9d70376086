// Package preview says what an operation would do before it starts: its phases, the workloads that
// it would end, and why it would be refused. The CLI shows it with --dry-run, and the console before
// each action.
package preview

import (
	"fmt"
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

// Plan is what an operation would do on a node.
type Plan struct {
	Action lifecycle.Action  `json:"action"`
	Node   lifecycle.NodeRef `json:"node"`
	Phases []Phase           `json:"phases"`
	// History is how long whole operations took here, nil without history.
	History *insight.Duration `json:"history,omitempty"`
	// EndsAs is the node's state after success.
	EndsAs lifecycle.NodeState `json:"ends_as"`
	// Workloads are the names of the workloads that a drain would end.
	Workloads []string `json:"workloads"`
	// Warnings are those of the workloads, and of a release the fault that the node still has.
	Warnings []Warning `json:"warnings,omitempty"`
	Blockers []Blocker `json:"blockers"`
	Refused  bool      `json:"refused"`
}

// Warning is what to know before a drain ends a workload of the plan, or before the operation.
type Warning struct {
	Workload string `json:"workload,omitempty"`
	Warning  string `json:"warning"`
}

// Phase is a phase of a plan.
type Phase struct {
	Name          string              `json:"name"`
	Title         string              `json:"title"`
	BudgetSeconds int64               `json:"budget_seconds"`
	WaitingOn     lifecycle.Attention `json:"waiting_on"`
	// History is how long the phase took here, nil without history.
	History *insight.Duration `json:"history,omitempty"`
}

// Blocker is a reason for which the operation would be refused now.
type Blocker struct {
	Code    schema.Kind `json:"code"`
	Message string      `json:"message"`
	// Next is the command that removes the reason, if there is one.
	Next string `json:"next,omitempty"`
}

// maxFaults is the number of characters of the text about a node's faults.
const maxFaults = 500

// Of returns the plan of an action on a node, as the node is known now.
func Of(n wire.NodeView, provider machine.Info, a lifecycle.Action, o lifecycle.Options) Plan {
	m, _ := lifecycle.PlanOf(a, o)
	m = m.On(provider).ForGPUs(n.GPUsTotal, o)
	p := Plan{Action: a, Node: lifecycle.NodeRef{NodeID: n.ID, Host: n.Host, State: n.State},
		Phases: []Phase{}, EndsAs: m.To, Workloads: []string{}, Blockers: blockers(n, provider, m, o)}
	for _, s := range m.Phases {
		p.Phases = append(p.Phases, Phase{Name: s.Name, Title: s.Title, BudgetSeconds: int64(s.Budget / time.Second), WaitingOn: s.WaitingOn})
		if s.Name == lifecycle.PhaseDrain {
			p.drains(n, o)
		}
	}
	if warning := ReleaseWarning(n, a); warning != "" {
		p.Warnings = append(p.Warnings, Warning{Warning: warning})
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

// Took adds how long operations of the action took on nodes of the provider.
func (p *Plan) Took(history insight.DurationList) {
	p.History = history.Of("")
	for i, s := range p.Phases {
		p.Phases[i].History = history.Of(s.Name)
	}
}

// Faults returns the conditions that need a repair, as the checkers found them last.
func Faults(n wire.NodeView) (faults []health.Condition) {
	for _, c := range n.Conditions {
		if !c.Stale && c.Faulty() {
			faults = append(faults, c.Condition)
		}
	}
	return faults
}

// ReleaseWarning is the warning before a node that still has a fault returns to service, empty for
// another action.
func ReleaseWarning(n wire.NodeView, a lifecycle.Action) string {
	faults := Faults(n)
	if a != lifecycle.ActionRelease || len(faults) == 0 {
		return ""
	}
	return "the node still has a fault: " + text.Line(health.Summary(faults), maxFaults) + "; health recovery may take it out of service again"
}

// Warnings returns the warnings of a node's workloads.
func Warnings(n wire.NodeView) (out []Warning) {
	for i, name := range n.Blockers() {
		if w := n.Workloads[i].Warning; w != "" {
			out = append(out, Warning{name, w})
		}
	}
	return out
}

// drains adds what a drain does with the node's workloads: what it stops, and what blocks it unless
// it is forced.
func (p *Plan) drains(n wire.NodeView, o lifecycle.Options) {
	p.Warnings = Warnings(n)
	for i, name := range n.Blockers() {
		switch w := n.Workloads[i]; {
		case w.Kind == task.KindGPUProcess: // it may belong to a workload
			p.Warnings = append(p.Warnings, Warning{name, "a drain waits for its end, and does not stop it"})
		case w.Stoppable():
			p.Workloads = append(p.Workloads, name)
		case !o.Force:
			p.Blockers = append(p.Blockers, Blocker{Code: schema.KindNodeInUse, Message: name})
		}
	}
}

func blockers(n wire.NodeView, provider machine.Info, m lifecycle.Plan, o lifecycle.Options) []Blocker {
	out := []Blocker{}
	superseded := n.Operation != nil && n.Operation.Status == lifecycle.OperationAbandoned && m.Holds
	if n.Operation != nil && !n.Operation.Status.Ended() && !superseded && m.ConflictsWith(n.Operation.Action) {
		out = append(out, Blocker{schema.KindOperationInProgress,
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
		out = append(out, Blocker{refusal.Kind, Fill(refusal.Message, n.Host), refusal.Next})
	}
	return out
}

// Fill replaces the word NODE of a command by the node's name.
func Fill(command, name string) string {
	words := strings.Split(command, " ")
	if i := slices.Index(words, "NODE"); i >= 0 {
		words[i] = name
	}
	return strings.Join(words, " ")
}
