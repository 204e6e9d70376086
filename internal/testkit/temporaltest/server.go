// Package temporaltest runs the real Temporal server of deploy/dev/temporal for
// tests: one server for a test process, on ports and a file of its own, gone with
// the process. Start at Shared.
package temporaltest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the server, below the module's root.
const binary = "bin/gpuaas-dev-temporal"

// startTimeout bounds how long a server may take to be ready on a busy machine.
const startTimeout = 2 * time.Minute

// Shared is one server for all tests of a process, started by the first that
// asks. Its zero value is ready. TestMain closes it with Run.
type Shared struct {
	mu     sync.Mutex
	server *server
	err    error
}

// Run runs the tests and stops the server after them. TestMain may return then:
// the exit code is the tests' own.
func (s *Shared) Run(m *testing.M) {
	m.Run()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.stop()
		_ = os.RemoveAll(s.server.dir)
	}
}

// Address returns the frontend's host:port of the running server. Without its
// binary the test fails; under -short it is skipped.
func (s *Shared) Address(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs a Temporal server; not under -short")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		s.server, s.err = launch()
	}
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.server.address
}

// findBinary looks for the server from the test's folder up.
func findBinary() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		path := filepath.Join(dir, binary)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New(binary + " is missing; build it with: ./task build:dev-temporal")
}

type server struct {
	address, dir string
	cmd          *exec.Cmd
	exited       chan struct{}
}

func launch() (*server, error) {
	path, err := findBinary()
	if err != nil {
		return nil, err
	}
	s := &server{exited: make(chan struct{})}
	if s.address, err = freeAddress(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "temporaltest-*"); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(path, "--address", s.address, "--ui-address", "", "--db", filepath.Join(s.dir, "temporal.db"))
	s.cmd.SysProcAttr = dieWithParent()
	if err := s.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// freeAddress is one that nobody listens on at the moment.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// start runs the server until it says that it is ready.
func (s *server) start() error {
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	started, ready := make(chan error, 1), make(chan struct{})
	var output bytes.Buffer
	go func() {
		// The signal at the parent's death is tied to the thread that forked.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if strings.Contains(lines.Text(), " ready: frontend ") {
				close(ready)
				break
			}
			output.WriteString(lines.Text() + "\n")
		}
		_, _ = io.Copy(io.Discard, stderr)
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", binary, err)
	}
	select {
	case <-ready:
		return nil
	case <-s.exited:
		return fmt.Errorf("%s ended at its start: %s", binary, output.String())
	case <-time.After(startTimeout):
		return errors.Join(fmt.Errorf("%s is not ready after %s", binary, startTimeout), s.cmd.Process.Kill())
	}
}

// stop ends the server and waits for it.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(startTimeout):
		return s.cmd.Process.Kill()
	}
}
