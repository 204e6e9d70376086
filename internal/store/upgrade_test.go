package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/migrations"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Tasks of every status of version 0006, one of them stored and not signed, go
// on after the upgrade as if nothing had happened.
func TestTheDispatchMigrationKeepsWhatRuns(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	done := e.held(c, f, "done", task.FactsCollect)
	_, err := e.Result(ctx, c, done.TaskID, succeeded(1, inventory.Facts{CPUs: 2}))
	require.NoError(t, err)
	running := e.held(c, f, "running", task.WorkloadDrain)
	gone := e.dispatch(f, "gone", task.WorkloadDrain)
	e.exec("UPDATE node_tasks SET status = 'lost' WHERE task_id = $1", gone.TaskID)
	waiting := e.dispatch(f, "waiting", task.NodeProbe)
	unsigned := spec(f, "unsigned", task.NodeProbe)
	e.enqueue(unsigned)
	e.exec("UPDATE node_tasks SET envelope = NULL, envelope_expires_at = NULL WHERE step = 'unsigned'")
	require.NoError(t, e.PutSet(ctx, verifierSet(1, ""), operator))

	config, err := pgx.ParseConfig(e.url)
	require.NoError(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files)
	require.NoError(t, err)
	_, err = p.DownTo(ctx, 6)
	require.NoError(t, err)
	require.Zero(t, e.number("SELECT count(*) FROM information_schema.columns WHERE table_name = 'node_tasks' AND column_name = 'holder'"))
	_, err = p.Up(ctx)
	require.NoError(t, err)
	e.raw.Reset()

	require.Equal(t, task.Succeeded, e.task(done.TaskID).Status)
	_, err = e.Progress(ctx, c, running.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	require.Equal(t, waiting.TaskID, e.take(c, time.Minute).TaskID)
	e.takeNone(c)
	row, err := e.Prepare(ctx, unsigned, taskOwner("unsigned"))
	require.NoError(t, err)
	require.True(t, row.Stored)
	require.False(t, row.Signed)
	require.NoError(t, e.Enqueue(ctx, unsigned, taskOwner("unsigned"), row, []byte("{}")))
	require.Equal(t, row.TaskID, e.take(c, time.Minute).TaskID)
	_, err = e.ResumeTask(ctx, gone.TaskID, "upgraded", operator)
	require.NoError(t, err)
	e.stale()
	require.Len(t, e.reclaim(), 3)
}
