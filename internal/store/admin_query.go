package store

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
)

// filter collects the conditions of a list query. Values are parameters, never
// text of the statement.
type filter struct {
	conditions []string
	args       []any
	// err is the first malformed value.
	err error
}

// arg adds a value and returns its placeholder.
func (f *filter) arg(v any) string {
	f.args = append(f.args, v)
	return "$" + strconv.Itoa(len(f.args))
}

func (f *filter) where(condition string) { f.conditions = append(f.conditions, condition) }

// id adds a condition that the column is the id, unless the id is empty.
func (f *filter) id(column, id string, missing func(string) error) {
	switch {
	case id == "":
	case !schema.IsID(id):
		f.err = missing(id)
	default:
		f.where(column + " = " + f.arg(id) + "::uuid")
	}
}

// anyOf adds a condition that the column has one of the values, unless there is
// none.
func anyOf[T ~string](f *filter, column string, values []T) {
	if len(values) == 0 {
		return
	}
	f.where(column + " = ANY (" + f.arg(values) + "::text[])")
}

// since adds a lower bound unless it is zero.
func (f *filter) since(column string, t time.Time) {
	if !t.IsZero() {
		f.where(column + " >= " + f.arg(t))
	}
}

// sql is the statement with its conditions, order and limit. One row more than
// asked for shows whether there is a further page.
func (f *filter) sql(selects, order string, limit int) string {
	var b strings.Builder
	b.WriteString(selects)
	for i, c := range f.conditions {
		b.WriteString([]string{" WHERE ", " AND "}[min(i, 1)] + "(" + c + ")")
	}
	return b.String() + " ORDER BY " + order + " LIMIT " + f.arg(limit+1)
}

// list returns the rows of a query as Ts, by the names of the columns. A field
// without a column is left as it is.
func list[T any](ctx context.Context, db *db, sql string, args ...any) ([]T, error) {
	rows, _ := db.Pool().Query(ctx, sql, args...) // CollectRows returns the error
	return pgx.CollectRows(rows, pgx.RowToStructByNameLax[T])
}

// listQuery is a list without its conditions.
type listQuery struct {
	doing, selects, order string
	limit                 int
}

// page returns one page of a list and, if there is a further page, the sort key of
// the last row.
func page[T any](ctx context.Context, db *db, q listQuery, f *filter, key func(T) []string) ([]T, []string, error) {
	if f.err != nil {
		return nil, nil, f.err
	}
	rows, err := query(ctx, db, q.doing, func(ctx context.Context) ([]T, error) {
		sql := f.sql(q.selects, q.order, q.limit)
		return list[T](ctx, db, sql, f.args...)
	})
	if len(rows) <= q.limit {
		return rows, nil, err
	}
	rows = rows[:q.limit]
	return rows, key(rows[q.limit-1]), err
}

// properties maps the selector's property keys to columns.
var properties = map[string]string{ //nolint:gochecknoglobals // read-only table
	"region": "n.region_code", "sku": "n.sku", "state": "n.state", "provider": "n.onboarding_mode",
	"class": "n.lifecycle_class", "host": "n.host",
}

// selector adds the requirements on the joined table nodes n.
func (f *filter) selector(s adminapi.Selector) {
	for _, r := range s {
		column, property := properties[r.Key]
		switch {
		case r.Key == "host":
			f.hosts(r)
		case property && r.Op == adminapi.OpIn:
			anyOf(f, column, r.Values)
		case property:
			f.where("NOT " + column + " = ANY (" + f.arg(r.Values) + "::text[])")
		case r.Op == adminapi.OpExists:
			f.where("jsonb_exists(n.labels, " + f.arg(r.Key) + ")")
		case r.Op == adminapi.OpNotExists:
			f.where("NOT jsonb_exists(n.labels, " + f.arg(r.Key) + ")")
		case r.Op == adminapi.OpIn && len(r.Values) == 1: // the index answers it
			f.where("n.labels @> jsonb_build_object(" + f.arg(r.Key) + "::text, " + f.arg(r.Values[0]) + "::text)")
		case r.Op == adminapi.OpIn:
			f.where("n.labels ->> " + f.arg(r.Key) + " = ANY (" + f.arg(r.Values) + "::text[])")
		default:
			f.where("NOT coalesce(n.labels ->> " + f.arg(r.Key) + " = ANY (" + f.arg(r.Values) + "::text[]), false)")
		}
	}
}

// hosts compares the host name with patterns.
func (f *filter) hosts(r adminapi.Requirement) {
	patterns := make([]string, len(r.Values))
	for i, v := range r.Values {
		patterns[i] = likePattern(v)
	}
	match := "lower(n.host) LIKE ANY (" + f.arg(patterns) + "::text[])"
	if r.Op == adminapi.OpNotIn {
		match = "NOT " + match
	}
	f.where(match)
}

// likePattern turns * and ? into those of LIKE and takes everything else
// literally.
func likePattern(pattern string) string {
	return strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`, "*", "%", "?", "_").Replace(strings.ToLower(pattern))
}

// afterTime continues a list that is sorted by a time and an id.
func (f *filter) afterTime(columns, compare string, after []string) {
	if len(after) == 0 {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, after[0])
	if err != nil || !schema.IsID(after[1]) {
		f.err = errPageToken()
		return
	}
	f.where("(" + columns + ") " + compare + " (" + f.arg(at) + ", " + f.arg(after[1]) + "::uuid)")
}

func errPageToken() error {
	return schema.NewError(schema.KindInvalidRequest, "page_token is not one of this list").WithReason("bad_page_token")
}

func timeKey(t time.Time, id string) []string { return []string{t.UTC().Format(time.RFC3339Nano), id} }
