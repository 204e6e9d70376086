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

// The roles of the processes in the database.
const (
	roleWorker   = "gpuaas_worker"
	roleAPIAdmin = "gpuaas_api_admin"
	roleAPINode  = "gpuaas_api_node"
)

func processRoles() []string { return []string{roleWorker, roleAPIAdmin, roleAPINode} }

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
	passwords := map[string]string{}
	for _, role := range append(processRoles(), database) {
		if passwords[role], err = ensureSecret(s.layout.rolePassword(role)); err != nil {
			return command{}, err
		}
	}
	created, err := pg.ensure(ctx, passwords)
	if err != nil {
		return command{}, err
	}
	s.record.ProcessRoles = s.record.ProcessRoles || created
	if err := s.layout.save(s.record); err != nil {
		return command{}, err
	}
	for role, password := range passwords {
		dsn := url.URL{
			Scheme: "postgres", User: url.UserPassword(role, password), Host: s.record.Postgres.Address,
			Path: database, RawQuery: "sslmode=disable",
		}
		if err := statefile.Write(s.layout.roleURL(role), []byte(dsn.String()+"\n")); err != nil {
			return command{}, err
		}
	}
	return pg.server(s.record.Ports.Postgres), nil
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

// ensure creates the cluster with its roles and its database if it does not exist, and
// reports whether it did. Local logins need the password too, because the machine may have
// other users.
func (c cluster) ensure(ctx context.Context, passwords map[string]string) (created bool, err error) {
	if _, err := os.Stat(c.data()); err == nil {
		return false, nil
	}
	if err := os.MkdirAll(c.dir, 0o711); err != nil { //nolint:gosec // Postgres's user must be able to traverse it
		return false, fmt.Errorf("creating the database folder: %w", err)
	}
	if !c.user.canReach(c.data()) && c.user != nil {
		return false, stackError("choose another --dir, or: chmod o+x on the folders above it",
			"%s, which runs Postgres, cannot access %s", c.user, c.dir)
	}
	fresh, secret := c.data()+".new", filepath.Join(c.dir, "password")
	if err := os.RemoveAll(fresh); err != nil {
		return false, err
	}
	err = errors.Join(c.user.chown(c.dir), statefile.Write(secret, []byte(passwords[database]+"\n")), c.user.chown(secret))
	if err == nil {
		err = c.run(ctx, "", "initdb", "-D", fresh, "-U", database, "--pwfile", secret,
			"-A", "scram-sha-256", "--no-locale", "-E", "UTF8")
	}
	if err = errors.Join(err, os.Remove(secret)); err != nil {
		return false, err
	}
	statements := []string{"CREATE DATABASE " + database}
	for _, role := range processRoles() {
		statements = append(statements, "CREATE ROLE "+role+" LOGIN PASSWORD '"+passwords[role]+"'")
	}
	if err := c.run(ctx, strings.Join(statements, ";\n")+";\n", "postgres", "--single", "-D", fresh, "template1"); err != nil {
		return false, err
	}
	return true, os.Rename(fresh, c.data())
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
