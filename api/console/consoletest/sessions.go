// Package consoletest has what tests of the console need in place of servers.
package consoletest

import (
	"context"
	"crypto/sha256"
	"sync"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema"
)

// Sessions keeps sessions in memory. They do not expire. It implements console.Sessions.
type Sessions struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]console.Session
}

// CreateSession implements console.Sessions.
func (s *Sessions) CreateSession(_ context.Context, n console.Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[[sha256.Size]byte]console.Session{}
	}
	s.all[n.ID] = n
	return nil
}

// FindSession implements console.Sessions.
func (s *Sessions) FindSession(_ context.Context, id [sha256.Size]byte, _ bool) (console.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.all[id]
	if !ok {
		return found, schema.NewError(schema.KindNotFound, "no such session")
	}
	return found, nil
}

// DeleteSession implements console.Sessions.
func (s *Sessions) DeleteSession(_ context.Context, id [sha256.Size]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
	return nil
}
