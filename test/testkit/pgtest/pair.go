package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/test/stack"
)

// Pair is a primary and its synchronous standby: the primary commits nothing that the standby
// does not have. A test that uses one kills and promotes servers, so it shares the pair with no
// other test.
type Pair struct {
	Primary, Standby *Member
}

// Member is one server of a pair.
type Member struct {
	tb      testing.TB
	bin     string
	dir     string
	port    int
	attr    *syscall.SysProcAttr
	running *exec.Cmd
}

// standbyName is the name of the standby in the configuration of the primary.
const standbyName = "s1"

// NewPair starts a pair whose database has the schema that migrate makes.
func NewPair(tb testing.TB, migrate Migrate) *Pair {
	tb.Helper()
	if testing.Short() && os.Getenv("CI") != "true" {
		tb.Skip("needs two Postgres servers")
	}
	bin, err := findPrograms()
	must(tb, err)
	server, err := filepath.EvalSymlinks(filepath.Join(bin, "postgres")) // pg_basebackup is beside it, and not always on PATH
	must(tb, err)
	bin = filepath.Dir(server)
	dir, attr, err := dataDir(bin)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(tb, err)
	p := &Pair{Primary: newMember(tb, bin, dir, attr)}
	p.Primary.Start()
	must(tb, p.Primary.exec("CREATE DATABASE gpuaas"))
	must(tb, migrate(tb.Context(), p.Primary.URL()))
	p.Standby = p.Primary.standby()
	p.Standby.Start()
	must(tb, p.Primary.exec("ALTER SYSTEM SET synchronous_standby_names = '"+standbyName+"'"))
	must(tb, p.Primary.exec("SELECT pg_reload_conf()"))
	p.Primary.await("SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync'")
	return p
}

// URL returns the URL with both servers, of which a connection is made to the one that accepts
// writes.
func (p *Pair) URL() string {
	return fmt.Sprintf("postgres://gpuaas@127.0.0.1:%d,127.0.0.1:%d/gpuaas?sslmode=disable&target_session_attrs=read-write", p.Primary.port, p.Standby.port)
}

func newMember(tb testing.TB, bin, dir string, attr *syscall.SysProcAttr) *Member {
	tb.Helper()
	port, err := stack.FreePorts(1)
	must(tb, err)
	m := &Member{tb: tb, bin: bin, dir: dir, port: port, attr: attr}
	tb.Cleanup(m.stop)
	return m
}

// standby copies the server.
func (m *Member) standby() *Member {
	m.tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "gpuaas-pg-")
	must(m.tb, err)
	m.tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	_, err = owner(dir)
	must(m.tb, err)
	from := url.URL{Scheme: "postgres", User: url.User("gpuaas"), Host: "127.0.0.1:" + strconv.Itoa(m.port), RawQuery: "application_name=" + standbyName}
	cmd := exec.CommandContext(m.tb.Context(), filepath.Join(m.bin, "pg_basebackup"), "-D", filepath.Join(dir, "data"), "-R", "-c", "fast", "--no-sync", "-d", from.String())
	cmd.SysProcAttr, cmd.Dir = m.attr, dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.tb.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	return newMember(m.tb, m.bin, dir, m.attr)
}

// URL returns the URL of this server alone.
func (m *Member) URL() string {
	return fmt.Sprintf("postgres://gpuaas@127.0.0.1:%d/gpuaas?sslmode=disable", m.port)
}

// Start starts a server that does not run and waits until it responds.
func (m *Member) Start() {
	m.tb.Helper()
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(m.tb, err)
	defer log.Close()
	// Unlike the shared server it needs no supervisor: the tests that use a pair are few.
	m.running = exec.Command(filepath.Join(m.bin, "postgres"), "-D", filepath.Join(m.dir, "data"), "-p", strconv.Itoa(m.port), "-k", m.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300", "-c", "wal_retrieve_retry_interval=100ms",
		"-c", "fsync=off") // a process that is killed leaves what it wrote
	m.running.SysProcAttr, m.running.Dir, m.running.Stdout, m.running.Stderr = m.attr, m.dir, log, log
	must(m.tb, m.running.Start())
	m.await("SELECT true")
}

// Kill ends the server as a crash of its machine would.
func (m *Member) Kill() {
	m.tb.Helper()
	must(m.tb, m.running.Process.Kill())
	_ = m.running.Wait()
	m.running = nil
}

// Promote makes a standby accept writes.
func (m *Member) Promote() {
	m.tb.Helper()
	must(m.tb, m.exec("SELECT pg_promote()"))
}

// Follow makes a server that does not run the standby of another.
func (m *Member) Follow(primary *Member) {
	m.tb.Helper()
	line := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=gpuaas application_name=%s'\n", primary.port, standbyName)
	auto := filepath.Join(m.dir, "data", "postgresql.auto.conf")
	for _, file := range []struct{ path, text string }{{auto, line}, {filepath.Join(m.dir, "data", "standby.signal"), ""}} {
		must(m.tb, os.WriteFile(file.path, []byte(file.text), 0o644))
	}
	m.Start()
}

func (m *Member) stop() {
	if m.running != nil {
		_ = m.running.Process.Signal(syscall.SIGQUIT)
		_ = m.running.Wait()
	}
}

func (m *Member) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.tb.Context()), startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, strings.Replace(m.URL(), "/gpuaas?", "/postgres?", 1))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// await waits until a query of one boolean is true.
func (m *Member) await(sql string) {
	m.tb.Helper()
	deadline := time.Now().Add(startTimeout)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := m.exec("DO $$ BEGIN IF NOT (" + sql + ") THEN RAISE 'not yet'; END IF; END $$")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(filepath.Join(m.dir, "log")) // only for the message
			m.tb.Fatalf("%s: %v\n%s", sql, err, said)
		}
		<-tick.C
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
