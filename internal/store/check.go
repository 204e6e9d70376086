package store

import (
	"context"
	"slices"
)

// MissingRoles returns those of the roles of the processes that the database does not have, or that
// cannot read operations because the grants were not applied.
func (s *Store) MissingRoles(ctx context.Context) ([]string, error) {
	type row struct{ Rolname string }
	rows, err := query(ctx, s.db, "reading the roles of the database", func(ctx context.Context) ([]row, error) {
		return list[row](ctx, s.db, `SELECT rolname::text FROM pg_roles WHERE rolname = ANY ($1::text[])
			AND has_table_privilege(rolname, to_regclass('public.operations'), 'SELECT')`, []string{RoleWorker, RoleAPIAdmin, RoleAPINode})
	})
	missing := []string{RoleWorker, RoleAPIAdmin, RoleAPINode}
	for _, r := range rows {
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == r.Rolname })
	}
	return missing, err
}
