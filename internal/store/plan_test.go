package store_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
)

// placeholder is one of sqlc's, with or without a type behind it.
var placeholder = regexp.MustCompile(`sqlc\.n?arg\(\w+\)`)

// query reads a query from the files that sqlc reads.
func query(t *testing.T, file, name string) string {
	t.Helper()
	raw, err := os.ReadFile("../../schema/queries/" + file + ".sql")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(raw), "-- name: "+name+" :")
	require.True(t, found, name)
	_, body, _ := strings.Cut(after, "\n")
	body, _, _ = strings.Cut(body, ";")
	n := 0
	return placeholder.ReplaceAllStringFunc(body, func(string) string {
		n++
		return fmt.Sprintf("$%d", n)
	})
}

// The queries of one node's view find their rows by the node: a plan for any
// parameters scans no table and no whole index.
func TestNodeViewUsesIndexes(t *testing.T) { //nolint:tparallel // one connection has the settings
	e := setup(t)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, e.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(ctx, "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
	require.NoError(t, err)
	views := store.ViewSQL()
	for _, q := range []struct{ name, sql, params, nulls, index string }{
		{"node", views["node"], "uuid, int", "NULL, NULL", ""},
		{"operations", views["operations"], "uuid[]", "NULL", ""},
		{"machines", views["machines"], "uuid[]", "NULL", ""},
		{"instance", views["instance"], "uuid", "NULL", "instances_pkey"},
		{"instances", views["instances"], "uuid, int", "NULL, NULL", "instances_node_idx"},
		{"certificates", views["certificates"], "uuid[]", "NULL", ""},
		{"open", query(t, "operations", "OpenOperations"), "uuid", "NULL", ""},
		{"conditions", views["conditions"], "uuid[], float8", "NULL, NULL", "conditions_pkey"},
		{"signals", views["signals"], "uuid, int", "NULL, NULL", "signals_node_idx"},
		{"reported", query(t, "signals", "ListConditions"), "uuid, text", "NULL, NULL", "conditions_pkey"},
		{"task", views["task"], "uuid", "NULL", ""},
		{"decision", query(t, "audit", "DecisionNoted"), "text, text, text", "NULL, NULL, NULL", "audit_events_decision_idx"},
		{"park", query(t, "audit", "ParkNoted"), "text, text, text", "NULL, NULL, NULL", "audit_events_park_idx"},
		{"watched", views["watched"], "uuid, float8, int", "NULL, NULL, NULL", "operations_watched_idx"},
	} {
		t.Run(q.name, func(t *testing.T) {
			_, err := conn.Exec(ctx, "PREPARE "+q.name+" ("+q.params+") AS "+q.sql)
			require.NoError(t, err)
			rows, err := conn.Query(ctx, "EXPLAIN EXECUTE "+q.name+" ("+q.nulls+")")
			require.NoError(t, err)
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.Contains(t, strings.Join(plan, "\n"), q.index)
			for i, line := range plan {
				if strings.Contains(line, "Seq Scan") || strings.Contains(line, "Index Scan") || strings.Contains(line, "Index Only Scan") {
					require.Less(t, i+1, len(plan), strings.Join(plan, "\n"))
					require.Contains(t, plan[i+1], "Index Cond", strings.Join(plan, "\n"))
				}
			}
		})
	}
}
