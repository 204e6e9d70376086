// Package temporaltest runs the real Temporal server of deploy/dev/temporal for tests:
// one server per test process, with its own ports and file. Start at Shared.
package temporaltest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
)

// binary is the server, in the project's bin folder.
const binary = "gpuaas-dev-temporal"

// startTimeout bounds the startup of a server on a busy machine.
const startTimeout = 2 * time.Minute

// Shared is one server for all tests of a process.
type Shared struct{ devserver.Shared[*server] }

// Address returns the frontend's host:port.
func (s *Shared) Address(tb testing.TB) string {
	tb.Helper()
	return s.Start(tb, func() (*server, error) { return launch() }).address
}

// Own starts a server for one test, with more flags of the program, and returns the
// frontend's host:port.
func Own(tb testing.TB, flags ...string) string {
	tb.Helper()
	s, err := launch(flags...)
	require.NoError(tb, err)
	tb.Cleanup(s.Close)
	return s.address
}

type server struct {
	address, dir string
	process      *devserver.Process
}

// Close stops the server and removes its files.
func (s *server) Close() {
	_ = s.process.Stop()
	_ = os.RemoveAll(s.dir)
}

func launch(flags ...string) (*server, error) {
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
	flags = append(flags, "--address", s.address, "--ui-address", "", "--db", filepath.Join(s.dir, "temporal.db"))
	s.process, _, err = devserver.Start(startTimeout, " ready: frontend ", path, flags...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}
