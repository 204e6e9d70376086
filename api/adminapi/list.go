package adminapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// nodes lists nodes in order of host name.
func (a *API) nodes(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	p := readParams(r.URL)
	q := NodeQuery{Page: p.page(2), States: closed(p, "state", lifecycle.NodeStates()), SKUs: p.list("sku"), Regions: p.list("region"),
		Providers: p.list("provider"), Issuers: p.repeated("issuer"), HostPrefix: p.one("host_prefix"), HostPattern: p.one("host"),
		Selector: p.selector(), Removed: p.flag("removed")}
	fields := p.fields()
	q.View = p.view(fields)
	for name, text := range map[string]string{"host_prefix": q.HostPrefix, "host": q.HostPattern} {
		if text != "" && !validHostPattern(text) {
			p.fail(name, "must be at most 253 of a-z A-Z 0-9 . - and for host also * and ?")
		}
	}
	if err := p.check(); err != nil {
		return err
	}
	nodes, next, err := a.cfg.Views.ListNodes(r.Context(), q)
	if err != nil {
		return err
	}
	if len(fields) == 0 {
		fields = viewFields[q.View]
	}
	return answerList(w, "nodes", nodes, next, fields)
}

// viewFields are the fields of a node that a view shows; none stands for all.
var viewFields = map[View][]string{ //nolint:gochecknoglobals // read-only table
	ViewName: {"id", "host", "state"},
	ViewSummary: {"id", "host", "state", "state_since", "cordoned", "sku", "gpus_total", "region_code", "onboarding_mode",
		"lifecycle_class", "labels", "incarnation", "last_heartbeat_at", "agent_version", "identity_lock", "operation", "created_at"},
}

// view reads the view, which a field mask implies.
func (p *params) view(fields []string) View {
	v := View(p.one("view"))
	views := []View{ViewName, ViewSummary, ViewFull}
	switch {
	case v != "" && !slices.Contains(views, v):
		p.fail("view", "must be one of "+joined(views))
	case v != "" && len(fields) > 0:
		p.fail("view", "must not be given together with fields")
	case v != "":
		return v
	}
	for _, candidate := range views[:2] {
		if len(fields) > 0 && !slices.ContainsFunc(fields, func(f string) bool { return !slices.Contains(viewFields[candidate], f) }) {
			return candidate
		}
	}
	if len(fields) > 0 {
		return ViewFull
	}
	return ViewSummary
}

// fields reads the field mask: the names of the fields of each row to return.
func (p *params) fields() []string {
	fields := p.list("fields")
	for _, f := range fields {
		if !validName(f, 40) {
			p.fail("fields", "must be names of fields")
		}
	}
	return fields
}

// answerList answers with a page of rows under the list's name, each cut to the
// fields.
func answerList[T any](w http.ResponseWriter, name string, rows []T, next []string, fields []string) error {
	if rows == nil {
		rows = []T{}
	}
	body := map[string]any{name: rows}
	if len(fields) > 0 {
		masked := make([]json.RawMessage, len(rows))
		for i, row := range rows {
			text, err := mask(row, fields)
			if err != nil {
				return err
			}
			masked[i] = text
		}
		body[name] = masked
	}
	if token := pageToken(next); token != "" {
		body["next_page_token"] = token
	}
	return edge.JSON(w, http.StatusOK, body)
}

// mask renders a row with the fields only.
func mask(row any, fields []string) (json.RawMessage, error) {
	text, err := json.Marshal(row)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding a row")
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "masking a row")
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { return !slices.Contains(fields, name) })
	return json.Marshal(all)
}
