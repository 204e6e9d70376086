package console

import (
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func auditRoutes() []Route { return []Route{shared("/audit", showAudit)} }

// auditPage is the data of the template audit.
type auditPage struct {
	Filter           filter
	Events           []auditEvent
	Actions, Results []string
	// Older is the address of the next page, empty on the last.
	Older string
}

// auditEvent is one event of the trail.
type auditEvent struct {
	audit.Row

	// Action is that of the event, with the decision if it is one.
	Action string
	// Override is the decision that ended a phase without its success: force or skip.
	Override lifecycle.Decision
	Detail   []string
}

// showAudit shows the events of all streams, newest first.
func showAudit(r *request) (view, error) {
	p := auditPage{Filter: filterOf(r.URL.Query().Get, "node", "actor", "action", "result", "since", "selector"), Results: audit.Results()}
	p.Actions = slices.Sorted(slices.Values(audit.Actions()))
	list, err := fetchRecent[wire.AuditPage](r, "/audit", p.Filter.query(r))
	if err != nil {
		return view{}, err
	}
	for _, row := range list.Events {
		p.Events = append(p.Events, newAuditEvent(row))
	}
	p.Older = p.Filter.next(r, list.NextPageToken)
	return view{Template: "audit", Title: "Audit trail", Nav: "Audit", Data: p}, nil
}

func newAuditEvent(row audit.Row) auditEvent {
	e := auditEvent{Row: row, Action: row.Action}
	d := lifecycle.Decision(row.Detail["decision"])
	if d != "" {
		e.Action += " " + string(d)
	}
	if row.Action == audit.Decision && (d == lifecycle.DecisionForce || d == lifecycle.DecisionSkip) {
		e.Override = d
	}
	if row.Host != "" {
		e.Actor = strings.Replace(row.Actor, row.Stream, row.Host, 1)
	}
	for k, v := range row.Detail {
		if k != "decision" {
			e.Detail = append(e.Detail, k+": "+v)
		}
	}
	slices.Sort(e.Detail)
	return e
}
