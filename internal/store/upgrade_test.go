package store_test

import (
	"io/fs"
	"maps"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema/migrations"
	"github.com/gpuaas/gpuaas/schema/task"
)

// A migration added after the released ones is applied to a database in use and
// keeps its rows.
func TestUpgradeKeepsRows(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	waiting := e.dispatch(f, "waiting", task.NodeProbe)
	before := len(e.chain(c.NodeID))

	next := released(t, `-- +goose Up
ALTER TABLE node_tasks ADD COLUMN next text NOT NULL DEFAULT 'added';
-- +goose Down
ALTER TABLE node_tasks DROP COLUMN next;
`)
	for range 2 {
		require.NoError(t, postgres.Migrate(t.Context(), postgres.Migration{URL: e.url, Files: next}))
	}
	e.raw.Reset()

	require.Equal(t, int64(1), e.number("SELECT count(*) FROM node_tasks WHERE next = 'added' AND task_id = $1", waiting.TaskID))
	require.Equal(t, waiting.TaskID, e.take(c, 0).TaskID)
	require.Len(t, e.chain(c.NodeID), before+1)
}

// released returns the migrations and a later one.
func released(t *testing.T, next string) fstest.MapFS {
	t.Helper()
	all := fstest.MapFS{"9999_next.sql": {Data: []byte(next)}}
	names, err := fs.Glob(migrations.Files, "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		data, err := fs.ReadFile(migrations.Files, name)
		require.NoError(t, err)
		maps.Copy(all, fstest.MapFS{name: {Data: data}})
	}
	return all
}
