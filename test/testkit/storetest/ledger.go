package storetest

import (
	"context"
	"slices"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// entry is a resource with the operation that planned it.
type entry struct {
	activities.Resource
	operationID string
}

// Plan implements activities.Ledger.
func (s *resourceLedger) Plan(_ context.Context, f activities.Fence, r activities.Resource) (activities.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return r, err
	}
	if lifecycle.IsUndo(s.ops[f.OperationID].Phase) {
		return r, errUndoBegan(f)
	}
	if found, err := s.resource(f, r.ResourceID); err == nil {
		return found.Resource, nil
	}
	r.NodeID, r.State = f.NodeID, activities.ResourcePlanned
	s.resources = append(s.resources, &entry{r, f.OperationID})
	s.note(f, audit.ResourcePlanned, r.ResourceID, audit.Succeeded, "")
	return r, nil
}

// Created implements activities.Ledger.
func (s *resourceLedger) Created(_ context.Context, f activities.Fence, resourceID, externalID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, ok := s.ops[f.OperationID]
	if !ok || op.OpSeq != f.OpSeq || op.NodeID != f.NodeID {
		return errFenced(f)
	}
	r, err := s.resource(f, resourceID)
	switch {
	case err != nil:
		return err
	case r.operationID != f.OperationID && op.claim.Instance.InstanceID != resourceID:
		return errFenced(f)
	case r.State == activities.ResourceCreated && r.ExternalID == externalID:
		return nil
	case r.State == activities.ResourceCreated:
		return schema.NewError(schema.KindInvalidRequest, "resource %s is created as %q, not %q", resourceID, r.ExternalID, externalID).
			WithReason("resource_mismatch")
	}
	r.State, r.ExternalID = activities.ResourceCreated, externalID
	s.note(f, audit.ResourceCreated, resourceID, audit.Succeeded, "")
	return nil
}

// Released implements activities.Ledger.
func (s *resourceLedger) Released(_ context.Context, f activities.Fence, resourceID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return err
	}
	r, err := s.resource(f, resourceID)
	if err != nil || r.State == activities.ResourceReleased {
		return err
	}
	r.State = activities.ResourceReleased
	s.note(f, audit.ResourceReleased, resourceID, audit.Succeeded, "")
	return nil
}

// Open implements activities.Ledger.
func (s *resourceLedger) Open(_ context.Context, f activities.Fence) (open []activities.Resource, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return nil, err
	}
	return s.openResources(f.NodeID), nil
}

// Resources returns the node's entries that are not released, oldest first.
func (s *resourceLedger) Resources(nodeID string) []activities.Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.openResources(nodeID)
}

func (s *state) openResources(nodeID string) (open []activities.Resource) {
	for _, r := range s.resources {
		if r.NodeID == nodeID && r.State != activities.ResourceReleased {
			open = append(open, r.Resource)
		}
	}
	return open
}

// holding returns KindFenced if the operation ended or does not hold the node.
func (s *state) holding(f activities.Fence) error {
	_, op, err := s.held(f)
	if err == nil && op.EndedAt != nil {
		return errEnded(f)
	}
	return err
}

func (s *resourceLedger) resource(f activities.Fence, id string) (*entry, error) {
	i := slices.IndexFunc(s.resources, func(r *entry) bool { return r.ResourceID == id && r.NodeID == f.NodeID })
	if i < 0 {
		return nil, schema.NewError(schema.KindNotFound, "node %s has no resource %q", f.NodeID, id)
	}
	return s.resources[i], nil
}
