package store

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A cordon counts without workloads that a heartbeat could not contain.
func TestCordonIgnoresInvalidWorkloads(t *testing.T) {
	t.Parallel()
	before := []task.Workload{{Name: "before", Kind: "docker"}}
	stored, err := json.Marshal(before)
	require.NoError(t, err)
	for name, c := range map[string]struct{ reported, want []task.Workload }{
		"valid":        {[]task.Workload{{Name: "a b", Kind: "docker"}}, []task.Workload{{Name: "a b", Kind: "docker"}}},
		"none":         {nil, nil},
		"too many":     {make([]task.Workload, wire.MaxWorkloads+1), before},
		"a long name":  {[]task.Workload{{Name: strings.Repeat("x", wire.MaxWorkloadName+1), Kind: "docker"}}, before},
		"control text": {[]task.Workload{{Name: "a\x1b[2J", Kind: "docker"}}, before},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := json.Marshal(task.CordonResult{Cordoned: true, Workloads: c.reported})
			require.NoError(t, err)
			p, err := nodeWork(sqlc.LockTaskRow{Type: task.WorkloadCordon, Workloads: stored}, task.Result{Status: task.Succeeded, Output: out})
			require.NoError(t, err)
			require.True(t, p.Cordoned)
			require.Equal(t, c.want, p.Workloads)
		})
	}
}

// refusalTable replaces identity_refusals within one minute.
type refusalTable map[string]bool

// Exec implements sqlc.DBTX.
func (r refusalTable) Exec(_ context.Context, _ string, args ...any) (pgconn.CommandTag, error) {
	key := args[0].(string) + " " + args[1].(string) //nolint:forcetypeassert // the columns' types
	if r[key] {
		return pgconn.NewCommandTag("INSERT 0 0"), nil
	}
	r[key] = true
	return pgconn.NewCommandTag("INSERT 0 1"), nil
}

// Query implements sqlc.DBTX.
func (refusalTable) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, pgx.ErrNoRows
}

// QueryRow implements sqlc.DBTX.
func (refusalTable) QueryRow(context.Context, string, ...any) pgx.Row { return nil }

// A node that repeats a refused result fills no audit; every task and every reason has
// its own row.
func TestRefusedResultsAreAuditedOnce(t *testing.T) {
	t.Parallel()
	table := refusalTable{}
	audited := func(err error, taskID string) int {
		r, ok := refuseTask(err, audit.Event{Stream: "node", Target: taskID}).(*refusal) //nolint:errorlint // the type is the subject
		require.True(t, ok)
		tx := &tx{Queries: sqlc.New(table)}
		require.NoError(t, r.record(t.Context(), tx))
		return len(tx.events)
	}
	mismatch := schema.NewError(schema.KindInvalidRequest, "another body").WithReason("envelope_mismatch")
	require.Equal(t, 1, audited(mismatch, "a"))
	require.Equal(t, 0, audited(mismatch, "a"))
	require.Equal(t, 1, audited(mismatch, "b"))
	require.Equal(t, 1, audited(errLeaseLost("a"), "a"))
}
