package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// printPlan prints the plan of an action. A plan that would be refused ends with exit
// code 3.
// took is the history of the action on the node's provider.
func (e *console) printPlan(n wire.NodeView, provider machine.Info, a lifecycle.Action, o lifecycle.Options, took insight.DurationList) error {
	p := preview.Of(n, provider, a, o)
	p.Took(took)
	if err := e.print(map[string]preview.Plan{"plan": p}, func(w io.Writer) { writePlan(w, p) }, n.Host); err != nil {
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

func writePlan(w io.Writer, p preview.Plan) {
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
