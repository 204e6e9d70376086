// Package temporaltest runs the real Temporal server of deploy/dev/temporal for tests:
// one server per test process, with its own ports and file. Start at Shared.
package temporaltest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
)

// binary is the server, in the project's bin folder.
const binary = "gpuaas-dev-temporal"

// startTimeout bounds the startup of a server on a busy machine.
const startTimeout = 2 * time.Minute

// Shared is one server for all tests of a process. The first use starts it. Its zero
// value is ready for use. TestMain stops it with Run.
type Shared struct {
	mu     sync.Mutex
	server *server
	err    error
}

// Run runs the tests and then stops the server. TestMain may return afterwards.
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

// Address returns the frontend's host:port. The test fails if the binary is missing
// and is skipped under -short.
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
	port, err := stack.FreePorts(1)
	if err != nil {
		return nil, err
	}
	s.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
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
