package worker

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/need"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// drillBench is a database with two nodes, audit events and a verifier set.
type drillBench struct {
	t        *testing.T
	url      string
	store    *store.Store
	progress harness.Buffer
}

// drillKey signs the verifier set.
type drillKey struct{ ed25519.PrivateKey }

func (drillKey) KeyID() (string, error) { return "root", nil }

func (k drillKey) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(k.PrivateKey, data), nil
}

func newDrillBench(t *testing.T) *drillBench {
	t.Helper()
	need.Program(t, "pg_dump", "install the client programs of Postgres")
	b := &drillBench{t: t, url: pgtest.New(t, store.Migrate)}
	var err error
	b.store, err = store.Open(t.Context(), store.Config{URL: b.url})
	require.NoError(t, err)
	t.Cleanup(b.store.Close)
	b.register("gpu-1")
	b.register("gpu-2")
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	doc, err := json.Marshal(trust.VerifierSetDoc{V: 1, Env: "test", Version: 1, IssuedAt: time.Now().UTC(), ExpiresAt: time.Now().UTC().Add(48 * time.Hour),
		Keys: trust.VerifierKeys{{KeyID: "task", Public: private.Public().(ed25519.PublicKey), State: trust.KeyActive}}})
	require.NoError(t, err)
	signer, err := dsse.NewEnvelopeSigner(drillKey{private})
	require.NoError(t, err)
	envelope, err := signer.SignPayload(t.Context(), trust.VerifierSetPayloadType, doc)
	require.NoError(t, err)
	raw, err := json.Marshal(envelope)
	require.NoError(t, err)
	set, err := trust.ParseVerifierSet(raw)
	require.NoError(t, err)
	require.NoError(t, b.store.Identities.PutSet(t.Context(), set.Stored(), audit.Subject{Actor: "a test"}))
	return b
}

func (b *drillBench) register(host string) {
	b.t.Helper()
	_, err := b.store.Admin.Register(b.t.Context(), schema.NewID(), wire.RegisterNodeRequest{Host: host, SKU: "cpu-dev", RegionCode: "region-1"}, audit.Subject{Actor: "a test"})
	require.NoError(b.t, err)
}

func (b *drillBench) getenv(name string) string {
	if name == "GPUAAS_DATABASE_URL" {
		return b.url
	}
	return ""
}

// exec changes the database past every rule.
func (b *drillBench) exec(statements string) {
	b.t.Helper()
	require.NoError(b.t, postgres.Run(b.t.Context(), b.url, statements))
}

func (b *drillBench) backup(file string) (BackupFile, error) {
	return Backup(b.t.Context(), BackupOptions{File: file, Getenv: b.getenv, Progress: io.Discard})
}

// dumped is a new dump.
func (b *drillBench) dumped() string {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), "gpuaas.dump")
	_, err := b.backup(file)
	require.NoError(b.t, err)
	return file
}

// drill runs a drill and returns the result of each check, and those that failed.
func (b *drillBench) drill(file string) (results map[string]diagnosis.Result, faults []diagnosis.Check) {
	b.t.Helper()
	r, err := Drill(b.t.Context(), DrillOptions{File: file, Getenv: b.getenv, Progress: &b.progress})
	require.NoError(b.t, err, b.progress.String())
	require.Empty(b.t, b.scratches(), "scratch databases that are left")
	results = map[string]diagnosis.Result{}
	for _, c := range r.Checks {
		results[c.Name] = c.Result
	}
	return results, r.Faults()
}

// number reads one number from the database.
func (b *drillBench) number(sql string) (n int) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.url)
	require.NoError(b.t, err)
	defer conn.Close(b.t.Context())
	require.NoError(b.t, conn.QueryRow(b.t.Context(), sql).Scan(&n))
	return n
}

// databases are the names of this database's scratch databases.
func (b *drillBench) databases() []string {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.url)
	require.NoError(b.t, err)
	defer conn.Close(b.t.Context())
	rows, err := conn.Query(b.t.Context(), `SELECT d.datname FROM pg_database d, pg_database own
		WHERE own.datname = current_database() AND starts_with(d.datname, 'gpuaas_drill_' || own.oid || '_')`)
	require.NoError(b.t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	return names
}

// scratches are the scratch databases on the server.
func (b *drillBench) scratches() []string {
	b.t.Helper()
	s, err := postgres.NewScratch(b.t.Context(), b.url)
	require.NoError(b.t, err)
	names, err := s.Clean(b.t.Context())
	require.NoError(b.t, err)
	require.NoError(b.t, s.Close(b.t.Context()))
	return names
}

// TestDrill: a drill without a fault checks everything, with a dump that it is given or makes, and
// changes nothing in the database.
func TestDrill(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	before, err := b.store.Drill().Counts(t.Context(), nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, before.Nodes)
	file := b.dumped()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	for _, f := range []string{file, ""} {
		results, faults := b.drill(f)
		require.Empty(t, faults)
		for _, name := range []string{"restore", "schema", "age", "rows", "audit trail", "nodes and operations", "verifier sets", "open operations"} {
			require.Equal(t, diagnosis.OK, results[name], name)
		}
	}
	after, err := b.store.Drill().Counts(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = b.backup(file)
	require.Equal(t, schema.KindAlreadyExists, schema.KindOf(err), "a backup replaces no file")
}

// TestDrillFindsFaults: each damage of a dump is found, and named.
func TestDrillFindsFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage string // of the database that is dumped
		check  string
		says   string
	}{
		"a changed audit event": {"ALTER TABLE audit_events DISABLE TRIGGER USER; UPDATE audit_events SET reason = 'another' WHERE seq = 1",
			"audit trail", "row 1 was changed after it was written"},
		"a missing audit stream": {"ALTER TABLE audit_events DISABLE TRIGGER USER; DELETE FROM audit_events WHERE action = 'trust.verifier_set_published'", "audit trail", "has no rows"},
		"a newer schema":         {"UPDATE schema_programs SET oldest_program = 9999", "schema", "needs programs from version 9999 on"},
		"a foreign operation":    {"UPDATE nodes SET operation_id = gen_random_uuid() WHERE host = 'gpu-1'", "nodes and operations", "1 nodes with an operation that is not theirs"},
		"a changed set":          {"UPDATE verifier_sets SET hash = repeat('0', 64)", "verifier sets", "is not the one of its record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newDrillBench(t)
			b.exec(c.damage)
			_, faults := b.drill(b.dumped())
			require.Len(t, faults, 1)
			require.Equal(t, c.check, faults[0].Name)
			require.Contains(t, faults[0].Answer, c.says)
			require.NotEmpty(t, faults[0].Next)
		})
	}
}

// TestDrillOfOlderDump: a table of the dump may be empty if all its rows are newer than the dump. It is a fault
// if the database has older ones.
func TestDrillOfOlderDump(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	file := b.dumped()
	b.exec(oldOperation)
	results, faults := b.drill(file)
	require.Empty(t, faults)
	require.Equal(t, diagnosis.OK, results["rows"])

	b.exec("UPDATE operations SET started_at = started_at - interval '1 day'")
	_, faults = b.drill(file)
	require.Len(t, faults, 1)
	require.Equal(t, "rows", faults[0].Name)
	require.Contains(t, faults[0].Answer, "no operations: nodes 2 of 2, operations 0 of 1,")
}

// TestDrillOfIncompleteDump: a dump that was cut off cannot be restored, and no scratch database is left.
func TestDrillOfIncompleteDump(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	file := b.dumped()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(file, info.Size()/2))
	results, faults := b.drill(file)
	require.Len(t, faults, 1)
	require.Equal(t, "restore", faults[0].Name)
	require.Contains(t, faults[0].Next, "the dump is incomplete")
	require.Equal(t, diagnosis.Skipped, results["audit trail"])

	_, err = Drill(t.Context(), DrillOptions{File: file + ".absent", Getenv: b.getenv, Progress: io.Discard})
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
	require.EqualError(t, err, "reading the dump: stat "+file+".absent: no such file or directory")
	require.Empty(t, b.scratches())
}

// TestDrillAfterKill: a drill that was killed leaves its scratch database, which the next one names and
// drops. While one runs, another is rejected.
func TestDrillAfterKill(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	killed, err := postgres.NewScratch(t.Context(), b.url)
	require.NoError(t, err)
	name, _, err := killed.Create(t.Context())
	require.NoError(t, err)
	_, err = Drill(t.Context(), DrillOptions{Getenv: b.getenv, Progress: &b.progress})
	require.Equal(t, schema.KindOperationInProgress, schema.KindOf(err))
	// The server ends the session of a killed process.
	b.exec("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'gpuaas-drill' AND datname = current_database()")
	require.Error(t, killed.Close(t.Context()))

	_, faults := b.drill("")
	require.Empty(t, faults)
	require.Contains(t, b.progress.String(), "dropped "+name+", which a drill left that was killed\n")
}

// TestBackupOnFullDisk: a backup that fails leaves no file, and says what to do.
func TestBackupOnFullDisk(t *testing.T) {
	t.Parallel()
	need.Root(t, "a small file system")
	b := newDrillBench(t)
	folder := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=8k"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(folder, 0)) })
	_, err := b.backup(filepath.Join(folder, "gpuaas.dump"))
	require.ErrorContains(t, err, "No space left on device")
	require.Equal(t, "free disk space", schema.AsError(err).Next)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}
