package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // creates the two databases
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence"
	persistencesql "go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	postgresplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/resolver"
	"go.temporal.io/server/schema"
	v12 "go.temporal.io/server/schema/postgresql/v12"
)

// The databases on a Postgres server, named as in Temporal's documentation, and
// their schemas in Temporal's module.
const (
	mainDatabase, mainSchema             = "temporal", "postgresql/v12/temporal/schema.sql"
	visibilityDatabase, visibilitySchema = "temporal_visibility", "postgresql/v12/visibility/schema.sql"
)

// postgresConns bounds each of the two pools.
const postgresConns = 20

// setupBudget bounds the creation of the two databases.
const setupBudget = time.Minute

// openPostgres returns the settings of the two databases on the server at
// o.postgres. It creates and migrates missing databases, for which the role needs
// permission.
func openPostgres(o options) (main, visibility *config.SQL, err error) {
	at, err := url.Parse(o.postgres)
	if err != nil || at.User == nil || at.Host == "" {
		return nil, nil, errors.New("--postgres: use postgres://user:password@host:port/database")
	}
	if err := createDatabases(o.postgres); err != nil {
		return nil, nil, err
	}
	password, _ := at.User.Password()
	settings := func(database string) *config.SQL {
		return &config.SQL{
			PluginName: postgresplugin.PluginNamePGX, DatabaseName: database, ConnectAddr: at.Host, ConnectProtocol: "tcp",
			User: at.User.Username(), Password: password,
			MaxConns: postgresConns, MaxIdleConns: postgresConns, MaxConnLifetime: time.Hour,
		}
	}
	main, visibility = settings(mainDatabase), settings(visibilityDatabase)
	if err := migrate(main, mainSchema, v12.Version); err != nil {
		return nil, nil, err
	}
	return main, visibility, migrate(visibility, visibilitySchema, v12.VisibilityVersion)
}

func createDatabases(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), setupBudget)
	defer cancel()
	db, err := sql.Open("pgx", address)
	if err != nil {
		return errors.New("--postgres is not a database URL")
	}
	defer func() { _ = db.Close() }()
	for _, name := range []string{mainDatabase, visibilityDatabase} {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+name)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "42P04" { // already exists
			continue
		}
		if err != nil {
			return fmt.Errorf("creating database %s: %w", name, err)
		}
	}
	return nil
}

// migrate installs this server's schema in an empty database. It does not change a
// database that has a version.
func migrate(c *config.SQL, file, version string) error {
	db, err := persistencesql.NewSQLAdminDB(sqlplugin.DbKindUnknown, c, resolver.NewNoopResolver(), log.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", c.DatabaseName, err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ReadSchemaVersion(c.DatabaseName); err == nil {
		return nil
	}
	text, err := schema.Assets().Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = text.Close() }()
	statements, err := persistence.LoadAndSplitQueryFromReaders([]io.Reader{text})
	if err != nil {
		return err
	}
	for _, s := range statements {
		if err := db.Exec(s); err != nil {
			return fmt.Errorf("setting up %s: %w", c.DatabaseName, err)
		}
	}
	if err := db.CreateSchemaVersionTables(); err != nil {
		return err
	}
	return db.UpdateSchemaVersion(c.DatabaseName, version, version)
}
