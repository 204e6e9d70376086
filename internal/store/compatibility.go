package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/migrations"
)

// The reasons of a schema that this version does not work with.
const (
	schemaTooOld = "schema_too_old"
	schemaTooNew = "schema_too_new"
)

// CheckSchema returns nil if this version works with the schema of the database: it has
// all migrations of this version, and none that needs a newer program. Other schemas are
// KindServiceUnavailable, reason schema_too_old or schema_too_new.
func (s *Store) CheckSchema(ctx context.Context) error {
	var version, oldest int64
	err := s.db.Call(ctx, "reading the schema version", func(ctx context.Context) error {
		return s.db.Pool().QueryRow(ctx,
			"SELECT (SELECT coalesce(max(version_id), 0) FROM goose_db_version), oldest_program FROM schema_programs").Scan(&version, &oldest)
	})
	mine := migrations.Latest()
	switch {
	case postgres.NoTable(err):
		return schema.Wrap(schema.KindServiceUnavailable, err, "the database has no schema, or one from before version %d; this program needs version %d", versioned, mine).
			WithReason(schemaTooOld).WithNext("gpuaas admin setup")
	case err != nil:
		return err
	case version < mine:
		return schema.NewError(schema.KindServiceUnavailable, "the database has schema version %d; this program needs version %d", version, mine).
			WithReason(schemaTooOld).WithNext("gpuaas admin setup")
	case mine < oldest:
		return schema.NewError(schema.KindServiceUnavailable,
			"the database has schema version %d, which works with programs from schema version %d on; this program has version %d", version, oldest, mine).
			WithReason(schemaTooNew).WithNext("start the version of this program whose gpuaas admin setup migrated the database")
	}
	return nil
}

// versioned is the first schema with a version that programs check.
const versioned = 14

// SchemaHealthy is CheckSchema for the readiness of a process. It returns nil while the
// database does not respond, which Ping reports.
func (s *Store) SchemaHealthy(ctx context.Context) error {
	err := s.CheckSchema(ctx)
	if r := schema.AsError(err); err != nil && r.Reason != schemaTooOld && r.Reason != schemaTooNew {
		return nil
	}
	return err
}
