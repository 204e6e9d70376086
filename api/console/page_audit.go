package console

import (
	"net/url"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// auditRows is the number of events on one page.
const auditRows = "100"

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
func showAudit(r *Request) (View, error) {
	p := auditPage{Filter: filterOf(r, "node", "actor", "action", "result", "since", "selector"), Results: audit.Results()}
	p.Actions = slices.Sorted(slices.Values(audit.Actions()))
	q := p.Filter.query(r, auditRows)
	list, err := Recent[wire.AuditPage](r, "/audit", q)
	if err != nil {
		return View{}, err
	}
	for _, row := range list.Events {
		p.Events = append(p.Events, newAuditEvent(row))
	}
	p.Older = p.Filter.next(r, list.NextPageToken)
	return View{Template: "audit", Title: "Audit trail", Nav: "Audit", Data: p}, nil
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

// filter are the filters of a list, as they are in its address: the address is the saved view.
type filter map[string]string

// filterOf reads the parameters with the names from the address of a page.
func filterOf(r *Request, names ...string) filter {
	f, q := filter{}, r.URL.Query()
	for _, name := range names {
		if v := strings.TrimSpace(q.Get(name)); v != "" {
			f[name] = v
		}
	}
	return f
}

// query returns the parameters of the admin API for the page of the list that the request asks
// for.
func (f filter) query(r *Request, rows string) url.Values {
	q := f.values()
	q.Set("limit", rows)
	if token := r.URL.Query().Get("page_token"); token != "" {
		q.Set("page_token", token)
	}
	return q
}

func (f filter) values() url.Values {
	q := url.Values{}
	for name, value := range f {
		q.Set(name, value)
	}
	return q
}

// next returns the address of the page with the token, empty for none.
func (f filter) next(r *Request, token string) string {
	if token == "" {
		return ""
	}
	q := f.values()
	q.Set("page_token", token)
	return r.URL.Path + "?" + q.Encode()
}
