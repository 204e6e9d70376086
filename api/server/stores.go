package server

import "github.com/gpuaas/gpuaas/internal/store"

// adminStore implements adminapi.Store with the repositories that it needs.
type adminStore struct {
	*store.Admin
	*store.Identities
	*store.Tasks
}

func newAdminStore(s *store.Store) adminStore { return adminStore{s.Admin, s.Identities, s.Tasks} }
