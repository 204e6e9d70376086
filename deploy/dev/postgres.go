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
)

// database is the name of the database and of the role that owns it.
const database = "gpuaas"

// spareRoot is where the data of a stack lies whose own folder Postgres's user
// cannot reach, such as one in root's home. It survives a restart of the
// machine, which a folder for temporary files would not.
const spareRoot = "/var/lib/gpuaas-dev"

// postgres is the part's description. Durability is as in production: what was
// committed survives kill -9.
func (s *stack) postgres() part {
	p := part{
		name: partPostgres, address: s.record.Postgres.Address,
		healthy: acceptsSessions(s.record.Postgres.Address),
	}
	if !s.record.Postgres.owned() {
		return p
	}
	p.uses = []portUse{{"database", s.record.Ports.Postgres}}
	p.prepare = s.preparePostgres
	// A fast stop; then an immediate one, which recovers at the next start.
	p.stop = []stopStep{{syscall.SIGINT, 10 * time.Second}, {syscall.SIGQUIT, 5 * time.Second}, {syscall.SIGKILL, 5 * time.Second}}
	// After a kill -9 its orphans hold the shared memory for a moment, and a
	// start meanwhile is refused.
	p.again = 15 * time.Second
	return p
}

func (s *stack) preparePostgres(ctx context.Context) (command, error) {
	who, err := unprivileged()
	if err != nil {
		return command{}, err
	}
	bin, err := s.postgresBin(ctx)
	if err != nil {
		return command{}, err
	}
	if s.record.PostgresData == "" {
		s.record.PostgresData = s.layout.choosePostgresDir(who)
	}
	s.record.Postgres.Program = bin
	if err := s.layout.save(s.record); err != nil {
		return command{}, err
	}
	pg := cluster{bin: bin, dir: s.record.PostgresData, who: who, env: inherited(os.Environ(), false)}
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
	return pg.server(s.record.Ports.Postgres), writePrivate(s.layout.databaseURL(), []byte(dsn.String()+"\n"))
}

// postgresBin keeps to the server that made the data, while it is there.
func (s *stack) postgresBin(ctx context.Context) (string, error) {
	if dir := s.record.Postgres.Program; dir != "" && isServer(dir) {
		return dir, nil
	}
	return needPostgres(ctx, s.look, s.tree, s.talk)
}

func (l layout) choosePostgresDir(who *account) string {
	if who.reaches(l.postgresDir()) {
		return l.postgresDir()
	}
	sum := sha256.Sum256([]byte(l.dir))
	return filepath.Join(spareRoot, hex.EncodeToString(sum[:6]))
}

// cluster is a Postgres data folder: dir/data, made as a whole or not at all.
type cluster struct {
	bin, dir string
	who      *account
	env      []string
}

func (c cluster) data() string { return filepath.Join(c.dir, "data") }

// ensure makes the cluster with its role and database when it is not there.
// Logins need the password also from this machine: others may use it too.
func (c cluster) ensure(ctx context.Context, password string) error {
	if _, err := os.Stat(c.data()); err == nil {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o711); err != nil { //nolint:gosec // Postgres's own user passes it
		return fmt.Errorf("making the database's folder: %w", err)
	}
	if !c.who.reaches(c.data()) && c.who != nil {
		return fault("choose another --dir, or: chmod o+x on the folders above it",
			"%s, which Postgres runs as, cannot reach %s", c.who, c.dir)
	}
	fresh, secret := c.data()+".new", filepath.Join(c.dir, "password")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	err := errors.Join(c.who.own(c.dir), writePrivate(secret, []byte(password+"\n")), c.who.own(secret))
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

// run runs one of the server's programs to its end.
func (c cluster) run(ctx context.Context, input, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, program), args...)
	cmd.Env, cmd.Dir, cmd.Stdin = c.env, c.dir, strings.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.who.credential()}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fault("see the lines above", "%s: %v\n  %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}

// server listens on the loopback interface only and makes no socket file, whose
// path would be limited to about a hundred bytes.
func (c cluster) server(port int) command {
	return command{
		path: filepath.Join(c.bin, "postgres"),
		args: []string{"-D", c.data(), "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "logging_collector=off", "-c", "max_connections=200"},
		env: c.env, dir: c.dir, user: c.who,
	}
}

// wipePostgres removes data that lies outside the layout.
func (r record) wipePostgres() error {
	if filepath.Dir(r.PostgresData) != spareRoot {
		return nil
	}
	if err := os.RemoveAll(r.PostgresData); err != nil {
		return err
	}
	if err := os.Remove(spareRoot); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return nil
}
