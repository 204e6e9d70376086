// Package temporaltest runs the real Temporal server of deploy/dev/temporal for
// tests: one server for a test process, on ports and a file of its own, gone with
// the process. Start at Shared.
package temporaltest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/internal/testkit/devserver"
)

// binary is the server, in the project's bin folder.
const binary = "gpuaas-dev-temporal"

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
	s.Close()
}

// Close stops the server, if one was started. A TestMain that runs the tests
// itself calls it after them.
func (s *Shared) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.process.Stop()
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

type server struct {
	address, dir string
	process      *devserver.Process
}

func launch() (*server, error) {
	path, err := devserver.Find(binary)
	if err != nil {
		return nil, err
	}
	s := &server{}
	if s.address, err = freeAddress(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "temporaltest-*"); err != nil {
		return nil, err
	}
	s.process, _, err = devserver.Start(startTimeout, " ready: frontend ", path,
		"--address", s.address, "--ui-address", "", "--db", filepath.Join(s.dir, "temporal.db"))
	if err != nil {
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
