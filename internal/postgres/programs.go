package postgres

import (
	"bytes"
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

const (
	// dumpLockWait is how long pg_dump waits for the locks of the tables that it reads.
	dumpLockWait = "60s"
	// stopTime is how long a program may take to end after it was interrupted.
	stopTime = 10 * time.Second
	// maxProgramText bounds the text of a program in an error.
	maxProgramText = 500
	// nextServer is the next step after the server ended a connection.
	nextServer = "check that the server runs and has free disk space, and repeat the command"
	// nextDisk is the next step if a restore filled the disk of its server.
	nextDisk = "free disk space on the server, or set GPUAAS_DRILL_DATABASE_URL to another server"
)

// libpqParams are the parameters of a URL that pg_dump and pg_restore accept. Others, such as the size
// of a pool, are those of this program.
//
//nolint:gochecknoglobals // read-only table
var libpqParams = []string{"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "connect_timeout",
	"target_session_attrs", "application_name", "options", "gssencmode", "krbsrvname"}

// Dump writes a dump of the database into a new file, with pg_dump in its custom format. The dump is of the
// exported snapshot, or of a new one if snapshot is "". The file is
// complete: an error leaves none, and a killed process at most one of another name, FILE.part-…. A file
// that exists is KindAlreadyExists; an error of pg_dump is KindInternal, or KindServiceUnavailable if the
// server ended the connection, reason pg_dump.
func Dump(ctx context.Context, url, file, snapshot string) error {
	if _, err := os.Lstat(file); err == nil {
		return schema.NewError(schema.KindAlreadyExists, "%s exists", file).WithNext("choose another file")
	}
	part, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".part-")
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "creating the dump")
	}
	defer os.Remove(part.Name()) //nolint:errcheck // it was renamed, or is incomplete
	defer part.Close()           //nolint:errcheck // synced before
	args := []string{"--format=custom", "--no-password", "--lock-wait-timeout=" + dumpLockWait, "--file=" + part.Name()}
	if snapshot != "" {
		args = append(args, "--snapshot="+snapshot)
	}
	err = program(ctx, url, "pg_dump", args...)
	if err != nil {
		return err
	}
	if err = part.Sync(); err == nil {
		err = os.Link(part.Name(), file) // unlike a rename, it replaces no file
	}
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "completing the dump")
	}
	return nil
}

// Restore restores a dump into an empty database, without owners and privileges: gpuaas admin setup
// sets them. It stops at the first error, reason pg_restore: KindServiceUnavailable if the server ended the
// connection or has a full disk, otherwise KindInternal. The restore is one transaction, so that an error
// frees the disk: with a full one, the server cannot drop the database.
func Restore(ctx context.Context, url, file string) error {
	return program(ctx, url, "pg_restore", "--single-transaction", "--no-owner", "--no-privileges", "--no-password", file)
}

// program runs a client program of Postgres on a database. The password is in its environment.
func program(ctx context.Context, url, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return schema.NewError(schema.KindInvalidRequest, "%s is not installed", name).WithReason(name).
			WithNext("install the client programs of Postgres of the server's version or a later one (Debian: postgresql-client)")
	}
	database, password, err := withoutPassword(url)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"--dbname=" + database}, args...)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "GPUAAS_") || password != "" && strings.HasPrefix(kv, "PGPASSWORD=")
	}), "LC_ALL=C")
	if password != "" {
		cmd.Env = append(cmd.Env, "PGPASSWORD="+password)
	}
	var said bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &said, stopTime
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	endWithParent(cmd)
	runtime.LockOSThread() // endWithParent ends the program with the thread that started it
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		first = strings.TrimPrefix(first, name+": error: ")
		kind, next := programFault(name, said.String())
		return schema.Wrap(kind, err, "%s: %s", name, text.Line(first, maxProgramText)).WithReason(name).WithNext(next)
	}
	return nil
}

// programFault returns the kind and the next step of an error of a client program. KindServiceUnavailable is
// a fault of the server, and no fault of a dump.
func programFault(name, said string) (schema.Kind, string) {
	for _, f := range []struct {
		name string // "" for each program
		said string
		kind schema.Kind
		next string
	}{
		{"pg_restore", "No space left on device", schema.KindServiceUnavailable, nextDisk},
		{"pg_restore", "Check free disk space", schema.KindServiceUnavailable, nextDisk},
		{"", "No space left on device", schema.KindInternal, "free disk space"},
		{"", "server version mismatch", schema.KindInternal, "install the client programs of the server's version"},
		{"", "unsupported version", schema.KindInternal, "install the client programs of the version that made the dump, or of a later one"},
		{"", "password", schema.KindServiceUnavailable, "check the password in the URL, or in the file of PGPASSFILE"},
		{"", "closed the connection unexpectedly", schema.KindServiceUnavailable, nextServer},
		{"", "terminating connection", schema.KindServiceUnavailable, nextServer},
		{"", "connection to server", schema.KindServiceUnavailable, nextServer},
		{"", "could not translate host name", schema.KindServiceUnavailable, "check the host in the database URL, and the name servers of this machine"},
		{"", "unexpected end of file", schema.KindInternal, "the dump is incomplete; use another one"},
		{"", "could not read from input file", schema.KindInternal, "the dump is incomplete; use another one"},
		{"", "does not appear to be a valid archive", schema.KindInternal, "name a file that gpuaas admin backup or pg_dump --format=custom wrote"},
	} {
		if (f.name == "" || f.name == name) && strings.Contains(said, f.said) {
			return f.kind, f.next
		}
	}
	return schema.KindInternal, ""
}

// withoutPassword splits a URL into one that may be an argument of a program, and the password.
func withoutPassword(from string) (database, password string, err error) {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", "", errMalformedURL()
	}
	if u.User != nil {
		password, _ = u.User.Password()
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	for name := range query {
		if !slices.Contains(libpqParams, name) {
			query.Del(name)
		}
	}
	u.RawQuery = query.Encode()
	return u.String(), password, nil
}

// WithDatabase returns the URL with another database of the same server.
func WithDatabase(from, name string) (string, error) {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", errMalformedURL()
	}
	u.Path = "/" + name
	return u.String(), nil
}
