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
	_ "github.com/jackc/pgx/v5/stdlib" // opens the database that the two are made in
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence"
	persistencesql "go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	postgresplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/resolver"
	"go.temporal.io/server/schema"
	"go.temporal.io/server/schema/postgresql/v12"
)

// The databases on a Postgres server, as Temporal's own documentation names
// them, and where their schemas are in its module.
const (
	mainDatabase, mainSchema             = "temporal", "postgresql/v12/temporal/schema.sql"
	visibilityDatabase, visibilitySchema = "temporal_visibility", "postgresql/v12/visibility/schema.sql"
)

// postgresConns bounds each of the two pools.
const postgresConns = 20

// setupBudget bounds making the two databases.
const setupBudget = time.Minute

// openPostgres answers the settings of the two databases on the server at
// o.postgres, which it makes and brings to this server's schema where they are
// not. The role must be allowed to make databases.
func openPostgres(o options) (main, visibility *config.SQL, err error) {
	at, err := url.Parse(o.postgres)
	if err != nil || at.User == nil || at.Host == "" {
		return nil, nil, errors.New("--postgres: want postgres://user:password@host:port/database")
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
		return errors.New("--postgres is no URL of a database")
	}
	defer func() { _ = db.Close() }()
	for _, name := range []string{mainDatabase, visibilityDatabase} {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+name)
		var answer *pgconn.PgError
		if errors.As(err, &answer) && answer.Code == "42P04" { // it is there
			continue
		}
		if err != nil {
			return fmt.Errorf("making the database %s: %w", name, err)
		}
	}
	return nil
}

// migrate sets up one empty database with the schema that this server wants. A
// database that has a version is left as it is.
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
