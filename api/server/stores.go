package server

import "github.com/gpuaas/gpuaas/internal/store"

// nodeStore implements nodeapi.Store with the repositories that it needs.
type nodeStore struct {
	*store.Identities
	*store.Tasks
	*store.Inventory
}

func newNodeStore(s *store.Store) nodeStore { return nodeStore{s.Identities, s.Tasks, s.Inventory} }

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
