package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// plan is what --dry-run prints: the steps an operation would take, the work it
// would end, and what it would be refused for.
type plan struct {
	Action lifecycle.Action  `json:"action"`
	Node   lifecycle.NodeRef `json:"node"`
	Steps  []planStep        `json:"steps"`
	// EndsAs is the node's state after success.
	EndsAs lifecycle.NodeState `json:"ends_as"`
	// Work is what the drain would end.
	Work     []string      `json:"work"`
	Blockers []planBlocker `json:"blockers"`
	Refused  bool          `json:"refused"`
}

type planStep struct {
	Name          string              `json:"name"`
	Title         string              `json:"title"`
	BudgetSeconds int64               `json:"budget_seconds"`
	Owner         lifecycle.Attention `json:"owner"`
}

// planBlocker is a reason for which the operation would be refused now.
type planBlocker struct {
	Code    schema.Kind `json:"code"`
	Message string      `json:"message"`
}

// printPlan prints the plan. A plan that would be refused ends with exit code 3.
func (e *env) printPlan(ctx context.Context, arg string, t target, v verb) error {
	if t.view == nil {
		view, err := e.lookup(ctx, arg)
		if err != nil {
			return fmt.Errorf("a plan needs the node's state: %w", err)
		}
		t = target{id: view.ID, host: view.Host, view: &view}
	}
	p := makePlan(*t.view, v)
	if err := e.print(map[string]plan{"plan": p}, func(w io.Writer) { writePlan(w, p) }); err != nil {
		return err
	}
	if p.Refused {
		return &exitError{schema.ExitRefused, []string{"it would be refused; nothing was changed"}}
	}
	e.say("nothing was changed")
	return nil
}

func makePlan(n wire.NodeView, v verb) plan {
	p := plan{Action: v.action, Node: lifecycle.NodeRef{NodeID: n.ID, Host: n.Host, State: n.State},
		Steps: []planStep{}, Work: []string{}, Blockers: planBlockers(n, v)}
	drains := false
	for _, s := range lifecycle.PhasesOf(v.action, v.options) {
		p.Steps = append(p.Steps, planStep{s.Name, s.Title, int64(s.Budget / time.Second), s.WaitingOn})
		drains = drains || s.Name == lifecycle.PhaseDrain
	}
	if m, ok := lifecycle.PlanOf(v.action, v.options); ok {
		p.EndsAs = m.To
	}
	if v.options.CordonOnly {
		p.EndsAs = n.State
	}
	if drains {
		p.Work = append(p.Work, n.Blockers()...)
	}
	p.Refused = len(p.Blockers) > 0
	return p
}

func planBlockers(n wire.NodeView, v verb) []planBlocker {
	out := []planBlocker{}
	if m, ok := lifecycle.PlanOf(v.action, v.options); ok && m.Holds && n.Operation != nil && !n.Operation.Status.Ended() {
		out = append(out, planBlocker{schema.KindOperationInProgress,
			fmt.Sprintf("%s is in progress on this node (operation %s, by %s)", n.Operation.Action, n.Operation.OperationID, n.Operation.Actor)})
	}
	if _, err := lifecycle.CheckStart(v.action, n.State); err != nil {
		out = append(out, planBlocker{schema.KindOf(err), fillNode(err.Error(), n.Host)})
	}
	if v.action == lifecycle.ActionRetire && !v.options.Drain && len(n.Workloads) > 0 {
		out = append(out, planBlocker{schema.KindNodeInUse,
			fmt.Sprintf("the node holds work: %s; drain first, or give --drain", strings.Join(n.Blockers(), ", "))})
	}
	return out
}

func writePlan(w io.Writer, p plan) {
	fmt.Fprintf(w, "Plan: %s %s, which is %s\n", p.Action, p.Node.Host, p.Node.State)
	for i, s := range p.Steps {
		row(w, fmt.Sprintf("  %d. %s", i+1, s.Title), "up to "+span(time.Duration(s.BudgetSeconds)*time.Second))
	}
	if p.EndsAs != "" {
		fmt.Fprintf(w, "Then the node is %s.\n", p.EndsAs)
	}
	writeList(w, "Work to end:", p.Work)
	var blockers []string
	for _, b := range p.Blockers {
		blockers = append(blockers, fmt.Sprintf("%s (%s)", b.Message, b.Code))
	}
	writeList(w, "Blockers:", blockers)
}

func writeList(w io.Writer, title string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintln(w, title)
	for _, item := range items {
		row(w, "  - "+item)
	}
}

// fillNode puts the node's name in place of the word NODE, so that a command
// can be pasted.
func fillNode(text, name string) string {
	words := strings.Split(text, " ")
	if i := slices.Index(words, "NODE"); i >= 0 {
		words[i] = name
	}
	return strings.Join(words, " ")
}
