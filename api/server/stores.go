package server

import "github.com/gpuaas/gpuaas/internal/store"

// auditTrail keeps the embedded field from hiding the method Audit.
type auditTrail = store.Audit

// adminStore implements adminapi.Store with the repositories that it needs.
type adminStore struct {
	*store.Inventory
	*store.Identities
	*store.Tasks
	*auditTrail
}

func newAdminStore(s *store.Store) adminStore {
	return adminStore{s.Inventory, s.Identities, s.Tasks, s.Audit}
}
