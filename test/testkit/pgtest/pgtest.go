// Package pgtest provides Postgres databases for tests. The first test that needs one
// starts a server for the test process; the server stops when the process ends, also
// after a crash.
//
// It needs the programs of a Postgres server (initdb, postgres), on PATH or where
// Debian, Homebrew and others install them. Without them a test fails. With -short the
// test is skipped, unless CI=true.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// The server of this process. All tests of a package share it, so the cleanup of one
// test cannot stop it.
var (
	started = sync.OnceValues(start)
	shared  templates
	count   atomic.Int64
)

// templates records whether the migrated database was made, and the error if not.
type templates struct {
	mu   sync.Mutex
	made bool
	err  error
}

const setupTimeout = 2 * time.Minute

// Migrate migrates the database at url to the current schema, for example
// store.Migrate.
type Migrate func(ctx context.Context, url string) error

// New returns the URL of a new database with the schema that migrate makes. A
// test process migrates once and copies the result, so all tests of a process must
// pass the same function.
func New(t testing.TB, migrate Migrate) (url string) {
	t.Helper()
	s := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	require.NoError(t, s.template(ctx, migrate), "migrating the template database")
	return s.database(ctx, t, "TEMPLATE "+templateName+copied)
}

// Empty returns the URL of a new empty database.
func Empty(t testing.TB) (url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	return server(t).database(ctx, t, "")
}

// As returns the URL with the privileges of another role.
func As(url, role string) string { return url + "&role=" + role }

const templateName = "template_gpuaas"

// copied copies the files of the template. The default strategy writes them to the log too,
// which takes twice the time.
const copied = " STRATEGY FILE_COPY"

// template makes the migrated database that New copies.
func (s *postgres) template(ctx context.Context, migrate Migrate) error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.made {
		shared.made = true
		if shared.err = s.exec(ctx, "CREATE DATABASE "+templateName); shared.err == nil {
			shared.err = migrate(ctx, s.url(templateName))
		}
	}
	return shared.err
}

// database makes a database and drops it when the test is over.
func (s *postgres) database(ctx context.Context, t testing.TB, options string) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", count.Add(1))
	require.NoError(t, s.exec(ctx, "CREATE DATABASE "+name+" "+options))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
		defer cancel()
		if err := s.exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Logf("dropping %s: %v", name, err)
		}
	})
	return s.url(name)
}

func (s *postgres) url(database string) string {
	return fmt.Sprintf("postgres://gpuaas@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// exec runs one statement on a connection of its own.
func (s *postgres) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// server returns the process's server, or ends the test.
func server(t testing.TB) *postgres {
	t.Helper()
	s, err := started()
	if err != nil && testing.Short() && os.Getenv("CI") != "true" {
		t.Skipf("no Postgres server for this test: %v", err)
	}
	require.NoError(t, err, "starting a Postgres server for the tests")
	return s
}
