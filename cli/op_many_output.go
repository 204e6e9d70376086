package cli

import (
	"fmt"
	"iter"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// planNames is the number of nodes that a plan names in each line.
const planNames = 3

// plan prints what the decision does, in one line for each effect.
func (m *decideMany) plan() {
	m.env.message("%s %d of %s:", m.decision, len(m.chosen), text.Count(len(m.rows), m.matched))
	left := func(o bulkOutcome, why string) {
		if rows := m.having(o); len(rows) > 0 {
			m.env.message("  left out %s: %s", names(rows), why)
		}
	}
	for effect, rows := range grouped(m.chosen) {
		m.env.message("  %s: %s", names(rows), effect)
	}
	left(decideNoOption, "the decision is not among the options there")
	for effect, rows := range grouped(m.having(decideHarmful)) {
		m.env.message("  left out without --allow-harm %s: %s", names(rows), effect)
	}
}

// grouped yields the rows of each effect, in order of their first row.
func grouped(rows []*decideRow) iter.Seq2[string, []*decideRow] {
	var effects []string
	of := map[string][]*decideRow{}
	for _, r := range rows {
		effect := fmt.Sprintf("%s, phase %s (%s): %s", r.Action, r.Phase, r.StuckReason, r.Does)
		if r.Harm != lifecycle.HarmNone {
			effect += " [harm: " + string(r.Harm) + "]"
		}
		if of[effect] == nil {
			effects = append(effects, effect)
		}
		of[effect] = append(of[effect], r)
	}
	return func(yield func(string, []*decideRow) bool) {
		for _, effect := range effects {
			if !yield(effect, of[effect]) {
				return
			}
		}
	}
}

// names is the first host names of the rows and how many more there are.
func names(rows []*decideRow) string {
	var hosts []string
	for _, r := range rows[:min(planNames, len(rows))] {
		hosts = append(hosts, r.name())
	}
	text := strings.Join(hosts, ", ")
	if more := len(rows) - len(hosts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (m *decideMany) having(o bulkOutcome) (rows []*decideRow) {
	for _, r := range m.rows {
		if r.Outcome == o {
			rows = append(rows, r)
		}
	}
	return rows
}

// print prints the rows and returns the number of those with each outcome.
func (m *decideMany) print() (map[bulkOutcome]int, error) {
	now := m.env.clock.now()
	return m.bulkRun.print(map[string]any{"decision": m.decision, "operations": m.rows}, listing[*decideRow]{
		header: []string{"NODE", "ACTION", "PHASE", "STUCK REASON", "SINCE", "OUTCOME", "ERROR", "ID"}, wide: 1,
		cells: func(r *decideRow) []string {
			return []string{r.name(), string(r.Action), r.Phase, r.StuckReason, lifecycle.Span(now.Sub(r.StuckSince)),
				r.Outcome.words(), dash(r.Error), r.OperationID}
		},
		name: func(r *decideRow) string { return r.OperationID },
	})
}

// exit is the end of the command. A decision that was outdated or not possible is not a
// failure: the operation no longer needs it, or needs another one.
func (m *decideMany) exit(n map[bulkOutcome]int) error {
	switch {
	case n[bulkFailed] > 0:
		return &exitError{schema.ExitFailed, []string{text.Count(n[bulkFailed], m.request) + " failed; run the command again to retry"}}
	case n[decideNotSent] > 0:
		return &exitError{schema.ExitPending, []string{text.Count(n[decideNotSent], m.request) + " not sent; run the command again to continue"}}
	case n[decideStored] > 0:
		return &exitError{schema.ExitPending, []string{text.Count(n[decideStored], "cancel") + " stored: applied as soon as a gpuaas-worker is up"}}
	case n[decideAccepted] > 0:
		return &exitError{schema.ExitPending, []string{text.Count(n[decideAccepted], m.request) + " accepted: applied as soon as the database and a gpuaas-worker are available"}}
	case n[decideHarmful] > 0:
		return &exitError{schema.ExitRefused, []string{text.Count(n[decideHarmful], m.request) + " left out; --allow-harm includes them"}}
	}
	return nil
}
