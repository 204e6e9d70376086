package devserver

import (
	"sync"
	"testing"
)

// Shared is one server for all tests of a process. The first Start starts it. Its zero
// value is ready for use. TestMain stops the server:
//
//	func TestMain(m *testing.M) { shared.Run(m) }
type Shared[S interface{ Close() }] struct {
	mu      sync.Mutex
	started bool
	server  S
	err     error
}

// Start returns the server, which launch starts once per process. The test fails if the
// server does not start, and is skipped under -short.
func (s *Shared[S]) Start(tb testing.TB, launch func() (S, error)) S {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs a server; not under -short")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.server, s.err = launch()
	}
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.server
}

// Run runs the tests and then stops the server. TestMain may return afterwards.
func (s *Shared[S]) Run(m *testing.M) {
	m.Run()
	s.Close()
}

// Close stops the server, if one was started. A TestMain that runs the tests itself
// calls it after them.
func (s *Shared[S]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started && s.err == nil {
		s.server.Close()
	}
}
