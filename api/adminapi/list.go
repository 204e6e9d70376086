package adminapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"

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
	var list any = rows
	if len(fields) > 0 {
		masked, err := mask(rows, fields)
		if err != nil {
			return schema.Wrap(schema.KindInternal, err, "encoding the rows of %s", name)
		}
		list = masked
	}
	body := map[string]any{name: list}
	if token := pageToken(next); token != "" {
		body["next_page_token"] = token
	}
	return edge.JSON(w, http.StatusOK, body)
}

// mask renders rows with the fields only, in the order of the type. It encodes
// no other field: a page of a thousand rows is answered in a few milliseconds.
func mask[T any](rows []T, fields []string) (json.RawMessage, error) {
	columns := columnsOf(reflect.TypeFor[T](), fields)
	var b bytes.Buffer
	b.WriteByte('[')
	for i, row := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('{')
		v, first := reflect.ValueOf(row), true
		for _, c := range columns {
			field := v.FieldByIndex(c.index)
			if c.omitEmpty && (field.IsZero() || field.Kind() == reflect.Map && field.Len() == 0) {
				continue
			}
			text, err := json.Marshal(field.Interface())
			if err != nil {
				return nil, err
			}
			if !first {
				b.WriteByte(',')
			}
			first = false
			b.WriteString(c.name)
			b.Write(text)
		}
		b.WriteByte('}')
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}

// column is one field of a row's type.
type column struct {
	name      string // as JSON, with its colon
	index     []int
	omitEmpty bool
}

// columnsOf are the fields of a struct type that the mask names.
func columnsOf(t reflect.Type, fields []string) []column {
	var out []column
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if slices.Contains(fields, name) {
			out = append(out, column{`"` + name + `":`, f.Index, strings.Contains(options, "omit")})
		}
	}
	return out
}
