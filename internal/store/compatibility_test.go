package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/migrations"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// A program works with a schema that has all of its migrations, and with a later one that
// only adds to it.
func TestSchemaVersions(t *testing.T) {
	e := setup(t)
	for _, role := range processRoles() {
		s, err := store.Open(t.Context(), store.Config{URL: pgtest.As(e.url, role)})
		require.NoError(t, err)
		require.NoError(t, s.CheckSchema(t.Context()), role)
		s.Close()
	}
	require.NoError(t, postgres.Migrate(t.Context(), postgres.Migration{URL: e.url, Files: released(t, "-- +goose Up\nCREATE TABLE more (n int);\n")}))
	require.NoError(t, e.CheckSchema(t.Context()), "an additive migration")

	e.exec("UPDATE schema_programs SET oldest_program = 9999")
	requireSchema(t, e.Store, "schema_too_new", "start the version of this program whose gpuaas admin setup migrated the database")
	require.ErrorContains(t, e.CheckSchema(t.Context()), "schema version 9999, which works with programs from schema version 9999 on")

	e.exec("UPDATE schema_programs SET oldest_program = 1")
	e.exec("DELETE FROM goose_db_version WHERE version_id >= $1", migrations.Latest())
	requireSchema(t, e.Store, "schema_too_old", "gpuaas admin setup")

	e.exec("DROP TABLE schema_programs")
	requireSchema(t, e.Store, "schema_too_old", "gpuaas admin setup")
}

// An empty database has the wrong schema. That of a database that does not respond is
// unknown.
func TestSchemaOfAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.Empty(t)})
	require.NoError(t, err)
	requireSchema(t, s, "schema_too_old", "gpuaas admin setup")
	s.Close()
	require.Error(t, s.CheckSchema(t.Context()))
	require.NoError(t, s.SchemaHealthy(t.Context()))
}

func requireSchema(t *testing.T, s *store.Store, reason, next string) {
	t.Helper()
	for _, err := range []error{s.CheckSchema(t.Context()), s.SchemaHealthy(t.Context())} {
		requireKind(t, err, schema.KindServiceUnavailable, reason)
		require.Equal(t, next, schema.AsError(err).Next)
	}
}
