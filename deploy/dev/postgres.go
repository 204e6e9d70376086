package dev

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
)

// database is the name of the database and of the role that owns it.
const database = "gpuaas"

// fallbackRoot contains the data of stacks whose folder Postgres's user cannot
// access, such as one in root's home. Unlike a temporary folder it survives a
// reboot.
const fallbackRoot = "/var/lib/gpuaas-dev"

// postgresEngine describes the Postgres part.
type postgresEngine struct{ *stack }

// part returns the part's description. Durability is as in production: committed
// data survives kill -9.
func (s postgresEngine) part() part {
	p := part{
		name: partPostgres, address: s.record.Postgres.Address,
		healthy: acceptsSessions(s.record.Postgres.Address),
	}
	if !s.record.Postgres.owned() {
		return p
	}
	p.uses = []portUse{{"database", s.record.Ports.Postgres}}
	p.prepare = s.prepare
	// First a fast shutdown, then an immediate one with recovery at the next start.
	p.stopSteps = []stopStep{{syscall.SIGINT, 10 * time.Second}, {syscall.SIGQUIT, 5 * time.Second}, {syscall.SIGKILL, time.Minute}}
	// After a kill -9 its child processes hold the shared memory for a moment, and
	// a start fails meanwhile.
	p.retryFor = time.Minute
	return p
}

func (s postgresEngine) prepare(ctx context.Context) (command, error) {
	user, err := unprivileged()
	if err != nil {
		return command{}, err
	}
	bin, err := s.binDir(ctx)
	if err != nil {
		return command{}, err
	}
	if s.record.PostgresData == "" {
		s.record.PostgresData = s.dataDir(user)
	}
	s.record.Postgres.Program = bin
	if err := s.layout.save(s.record); err != nil {
		return command{}, err
	}
	pg := cluster{bin: bin, dir: s.record.PostgresData, user: user, env: inherited(os.Environ(), false)}
	password, err := ensureSecret(s.layout.secret("postgres-password"))
	if err != nil {
		return command{}, err
	}
	if err := pg.ensure(ctx, password); err != nil {
		return command{}, err
	}
	dsn := url.URL{
		Scheme: "postgres", User: url.UserPassword(database, password), Host: s.record.Postgres.Address,
		Path: database, RawQuery: "sslmode=disable",
	}
	return pg.server(s.record.Ports.Postgres), statefile.Write(s.layout.databaseURL(), []byte(dsn.String()+"\n"))
}

// binDir returns the programs of the server that created the data, if it still
// exists, or of any other server.
func (s postgresEngine) binDir(ctx context.Context) (string, error) {
	if dir := s.record.Postgres.Program; dir != "" && isServer(dir) {
		return dir, nil
	}
	return needPostgres(ctx, s.programs.look, s.programs.sourceTree, s.messages)
}

func (s postgresEngine) dataDir(user *account) string {
	if user.canReach(s.layout.postgresDir()) {
		return s.layout.postgresDir()
	}
	sum := sha256.Sum256([]byte(s.layout.dir))
	return filepath.Join(fallbackRoot, hex.EncodeToString(sum[:6]))
}

// cluster is a Postgres data folder, dir/data, which is created atomically.
type cluster struct {
	bin, dir string
	user     *account
	env      []string
}

func (c cluster) data() string { return filepath.Join(c.dir, "data") }

// ensure creates the cluster with its role and database if it does not exist.
// Local logins need the password too, because the machine may have other users.
func (c cluster) ensure(ctx context.Context, password string) error {
	if _, err := os.Stat(c.data()); err == nil {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o711); err != nil { //nolint:gosec // Postgres's user must be able to traverse it
		return fmt.Errorf("creating the database folder: %w", err)
	}
	if !c.user.canReach(c.data()) && c.user != nil {
		return stackError("choose another --dir, or: chmod o+x on the folders above it",
			"%s, which runs Postgres, cannot access %s", c.user, c.dir)
	}
	fresh, secret := c.data()+".new", filepath.Join(c.dir, "password")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	err := errors.Join(c.user.chown(c.dir), statefile.Write(secret, []byte(password+"\n")), c.user.chown(secret))
	if err == nil {
		err = c.run(ctx, "", "initdb", "-D", fresh, "-U", database, "--pwfile", secret,
			"-A", "scram-sha-256", "--no-locale", "-E", "UTF8")
	}
	if err = errors.Join(err, os.Remove(secret)); err != nil {
		return err
	}
	err = c.run(ctx, "CREATE DATABASE "+database+";\n", "postgres", "--single", "-D", fresh, "template1")
	if err != nil {
		return err
	}
	return os.Rename(fresh, c.data())
}

// run runs one of the server's programs and waits for its exit.
func (c cluster) run(ctx context.Context, input, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, program), args...)
	cmd.Env, cmd.Dir, cmd.Stdin = c.env, c.dir, strings.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user.credential()}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return stackError("read the output above", "%s: %v\n  %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}

// server listens on the loopback interface only. It creates no socket file,
// because socket paths are limited to about a hundred bytes.
func (c cluster) server(port int) command {
	return command{
		path: filepath.Join(c.bin, "postgres"),
		args: []string{"-D", c.data(), "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "logging_collector=off", "-c", "max_connections=200"},
		env: c.env, dir: c.dir, user: c.user,
	}
}

// wipePostgres removes data outside the layout.
func (r record) wipePostgres() error {
	if filepath.Dir(r.PostgresData) != fallbackRoot {
		return nil
	}
	if err := os.RemoveAll(r.PostgresData); err != nil {
		return err
	}
	if err := os.Remove(fallbackRoot); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return nil
}
