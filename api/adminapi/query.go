package adminapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxValues bounds the alternatives of one condition.
const maxValues = 50

// query reads the parameters of a request and keeps the first error.
type query struct {
	base
	*call
	values url.Values // those that were not read yet
	fields []string   // the fields of each row to return; all when empty
	err    error
}

func (b base) query(c *call) *query {
	return &query{base: b, call: c, values: c.URL.Query()}
}

// listQuery is query for an endpoint with the parameter fields.
func (b base) listQuery(c *call) *query {
	q := b.query(c)
	q.fields = words[string](q, "fields")
	return q
}

func (q *query) fail(err error) {
	if q.err == nil {
		q.err = err
	}
}

// take returns the values of a parameter.
func (q *query) take(name string) []string {
	values := q.values[name]
	delete(q.values, name)
	return values
}

// one returns a parameter that must not be repeated.
func (q *query) one(name string) string {
	values := q.take(name)
	if len(values) > 1 {
		q.fail(badField(name, "must be given once"))
	}
	return strings.Join(values, "")
}

// words returns the values of a repeatable parameter; commas separate values too.
// If allowed is not empty, it lists the valid values.
func words[T ~string](q *query, name string, allowed ...T) []T {
	var out []T
	for _, text := range q.take(name) {
		for word := range strings.SplitSeq(text, ",") {
			if word = strings.TrimSpace(word); word == "" {
				continue
			}
			if out = append(out, T(word)); len(allowed) > 0 && !slices.Contains(allowed, T(word)) {
				q.fail(badField(name, "must be one of "+joined(allowed)))
			}
		}
	}
	if len(out) > maxValues {
		q.fail(badField(name, fmt.Sprintf("must have at most %d values", maxValues)))
	}
	return out
}

func joined[T ~string](all []T) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ", "), "[]")
}

// parsed returns a parameter as T, fallback without the parameter.
func parsed[T any](q *query, name string, fallback T, must string, parse func(string) (T, error)) T {
	text := q.one(name)
	if text == "" {
		return fallback
	}
	v, err := parse(text)
	if err != nil {
		q.fail(badField(name, must))
	}
	return v
}

func (q *query) flag(name string) bool {
	return parsed(q, name, false, "must be true or false", strconv.ParseBool)
}

// number returns a whole number from low to high.
func (q *query) number(name string, fallback, low, high int) int {
	return parsed(q, name, fallback, fmt.Sprintf("must be a number from %d to %d", low, high), func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if n < low || n > high {
			err = strconv.ErrRange
		}
		return n, err
	})
}

// since returns a time, which may be given as a duration before now such as 24h.
func (q *query) since() time.Time {
	return parsed(q, "since", time.Time{}, "must be a time such as 2026-03-01T12:00:00Z, or a duration such as 24h", func(text string) (time.Time, error) {
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return time.Now().Add(-d), nil
		}
		return time.Parse(time.RFC3339Nano, text)
	})
}

func (q *query) limit() int { return q.number("limit", wire.DefaultPage, 1, wire.MaxPage) }

// page returns limit and page_token. keys is the number of values in the sort key
// of the list.
func (q *query) page(keys int) Page {
	after := parsed(q, "page_token", nil, "must be the next_page_token of the page before", func(text string) (key []string, err error) {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(raw, &key)
		}
		if len(key) != keys {
			err = strconv.ErrRange
		}
		return key, err
	})
	return Page{Limit: q.limit(), After: after}
}

// pageToken returns the token of the page after the sort key; empty for none.
func pageToken(next []string) string {
	if len(next) == 0 {
		return ""
	}
	raw, _ := json.Marshal(next) //nolint:errchkjson // strings always encode
	return base64.RawURLEncoding.EncodeToString(raw)
}

func (q *query) selector() Selector {
	s, err := ParseSelector(q.one("selector"))
	q.fail(err)
	return s
}

// node returns the id of the node that the parameter node names by id or host
// name; empty without the parameter.
func (q *query) node() string {
	return q.nodeAs(func(ctx context.Context, name string) (string, error) {
		node, err := q.named(ctx, name)
		return node.ID, err
	})
}

// stream is node for the audit stream of a node or of the system.
func (q *query) stream() string { return q.nodeAs(q.streamOf) }

func (q *query) nodeAs(resolve func(context.Context, string) (string, error)) string {
	name := q.one("node")
	if name == "" || q.err != nil {
		return ""
	}
	id, err := resolve(q.Context(), name)
	q.fail(err)
	return id
}

// check returns the first error. An unknown parameter is one, because ignoring a
// filter would return too much.
func (q *query) check() error {
	for name := range q.values {
		if len(name) > 40 || !text.IsLine(name, 40) {
			name = "…"
		}
		q.fail(schema.NewError(schema.KindInvalidRequest, "unknown query parameter %q", name).WithReason("unknown_parameter"))
	}
	return q.err
}

// page reads one page of a list and returns the fields of its rows under the
// list's name.
func page[Q, R any](q *query, name string, of Q, read func(context.Context, Q) ([]R, []string, error)) (any, error) {
	columns := columnsOf[R]()
	if known := slices.Sorted(maps.Keys(columns)); slices.ContainsFunc(q.fields, func(f string) bool { return !slices.Contains(known, f) }) {
		q.fail(badField("fields", "must be one of "+joined(known)))
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	rows, next, err := read(q.Context(), of)
	if err != nil {
		return nil, err
	}
	body := map[string]any{name: append([]R{}, rows...)}
	if len(q.fields) > 0 {
		maps.DeleteFunc(columns, func(name string, _ reflect.StructField) bool { return !slices.Contains(q.fields, name) })
		body[name] = mask(rows, columns)
	}
	if token := pageToken(next); token != "" {
		body["next_page_token"] = token
	}
	return body, nil
}

// columnsOf returns the fields of a row by their names in JSON. A row that is not a
// struct has none.
func columnsOf[R any]() map[string]reflect.StructField {
	columns := map[string]reflect.StructField{}
	if row := reflect.TypeFor[R](); row.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(row) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				columns[name] = f
			}
		}
	}
	return columns
}

// mask returns the rows with the columns only. It encodes no other field, which
// matters for a page of a thousand rows.
func mask[R any](rows []R, columns map[string]reflect.StructField) []map[string]any {
	masked := make([]map[string]any, len(rows))
	for i := range rows {
		row := reflect.ValueOf(&rows[i]).Elem()
		masked[i] = make(map[string]any, len(columns))
		for name, c := range columns {
			v := row.FieldByIndex(c.Index)
			if empty := v.IsZero() || v.Kind() == reflect.Map && v.Len() == 0; !empty || !strings.Contains(string(c.Tag), ",omit") {
				masked[i][name] = v.Addr().Interface()
			}
		}
	}
	return masked
}
