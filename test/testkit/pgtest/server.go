package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/test/stack"
)

// postgres is a running server.
type postgres struct {
	port int
	// alive stays open while this process runs. When it closes, the supervisor
	// stops the server.
	alive io.WriteCloser
}

// supervisor is a script that runs the server until its standard input closes,
// which happens however the test process ends, and then removes its files. Unlike
// a parent-death signal it works on every Unix.
const supervisor = `trap '' INT HUP TERM
"$1" -D "$2/data" -p "$3" -k "$2" -c listen_addresses=127.0.0.1 -c fsync=off -c synchronous_commit=off \
    -c full_page_writes=off -c max_wal_size=256MB -c max_connections=300 </dev/null &
server=$!
read -r _
kill -INT $server 2>/dev/null
wait $server
cd / && rm -rf "$2"`

// memory is the file system of Linux that is in memory. A database on it costs a third of
// the time of one on a disk.
const memory = "/dev/shm"

const (
	startTries   = 3 // a port that was free may be taken before the server has it
	startTimeout = 2 * time.Minute
)

// start makes a data directory and starts a server on it. If this process is root,
// the server runs as the user postgres, because Postgres refuses to run as root.
func start() (*postgres, error) {
	bin, err := findPrograms()
	if err != nil {
		return nil, err
	}
	var s *postgres
	for range startTries {
		if s, err = launch(bin); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// launch starts a supervisor on a new data directory and a free port and waits
// until the server answers.
func launch(bin string) (*postgres, error) {
	dir, credential, err := dataDir(bin)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	port, err := stack.FreePorts(1)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.Command("/bin/sh", "-c", supervisor, "supervisor", filepath.Join(bin, "postgres"), dir, strconv.Itoa(port))
	cmd.SysProcAttr, cmd.Dir = credential, dir
	log, err := os.Create(filepath.Join(dir, "log")) // a file and no pipe: `go test` would wait for its end
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	s := &postgres{port: port}
	if s.alive, err = cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.ready(); err != nil {
		said, _ := os.ReadFile(log.Name()) // only for the message
		return nil, errors.Join(fmt.Errorf("postgres on port %d: %w: %s", port, err, said), s.alive.Close(), cmd.Wait())
	}
	return s, nil
}

// dataDir makes a data directory that belongs to the user the server runs as.
// Its path is short: that of a Unix socket is limited. It is in memory if there is space.
func dataDir(bin string) (dir string, credential *syscall.SysProcAttr, err error) {
	if dir, err = tempDir(); err != nil {
		return dir, nil, err
	}
	if credential, err = owner(dir); err != nil {
		return dir, credential, err
	}
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"), "-U", "gpuaas",
		"-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8")
	initdb.SysProcAttr, initdb.Dir = credential, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return dir, credential, fmt.Errorf("initdb: %w: %s", err, out)
	}
	return dir, credential, nil
}

func tempDir() (string, error) {
	if hasSpace(memory) {
		if dir, err := os.MkdirTemp(memory, "gpuaas-pg-"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("/tmp", "gpuaas-pg-")
}

// ready waits until the server answers.
func (s *postgres) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.exec(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// owner gives dir to the user the server will run as.
func owner(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("a Postgres server does not run as root, and there is no user postgres: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 31)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 31)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// findPrograms returns the folder of initdb and postgres: the one on PATH, or
// that of the newest installed version.
func findPrograms() (string, error) {
	var found []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		found = append(found, dirs...)
	}
	slices.Reverse(found)
	if p, err := exec.LookPath("initdb"); err == nil {
		found = append([]string{filepath.Dir(p)}, found...)
	}
	for _, dir := range found {
		if hasPrograms(dir) {
			return dir, nil
		}
	}
	return "", errors.New("no initdb and postgres found; install a Postgres server " +
		"(Debian: apt-get install postgresql; macOS: brew install postgresql@17)")
}

func hasPrograms(dir string) bool {
	_, initdb := os.Stat(filepath.Join(dir, "initdb"))
	_, server := os.Stat(filepath.Join(dir, "postgres"))
	return initdb == nil && server == nil
}
