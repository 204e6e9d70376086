package postgres

import "context"

// Sessions is a database and how many clients use it.
type Sessions struct {
	Database string
	// Others counts the sessions of clients whose application name is not that of this pool.
	Others int64
}

// Sessions returns the database of the pool and the sessions of other clients in it.
func (db *DB) Sessions(ctx context.Context) (Sessions, error) {
	var s Sessions
	err := db.Call(ctx, "reading the sessions of the database", func(ctx context.Context) error {
		return db.Retry(func() error {
			return db.pool.QueryRow(ctx, `SELECT current_database(), count(a.pid) FROM pg_stat_activity a
				WHERE a.datname = current_database() AND a.usename IS NOT NULL -- processes of the server have no user
				AND a.application_name <> current_setting('application_name')`).Scan(&s.Database, &s.Others)
		})
	})
	return s, err
}
