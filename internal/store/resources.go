package store

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// kindInstance is the kind of the resource that is the node's machine.
const kindInstance = "instance"

// Plan records the intent to create a resource, before the outside call. A second
// call changes nothing; both return the stored resource.
func (s *Operations) Plan(ctx context.Context, f activities.Fence, r activities.Resource) (activities.Resource, error) {
	return write(ctx, s.db, "planning resource "+r.ResourceID, func(ctx context.Context, tx *tx) (activities.Resource, error) {
		if _, err := tx.lockHeld(ctx, f); err != nil {
			return r, err
		}
		rows, err := tx.PlanResource(ctx, sqlc.PlanResourceParams{ResourceID: r.ResourceID, NodeID: f.NodeID,
			OperationID: f.OperationID, Kind: r.Kind, Provider: r.Provider})
		if err != nil {
			return r, err
		}
		stored, err := tx.resource(ctx, f, r.ResourceID)
		if rows > 0 {
			noteResource(tx, f, audit.ResourcePlanned, stored)
		}
		return stored, err
	})
}

// Created records that the resource exists. A second call with the same external id
// is a no-op. Another external id is KindInvalidRequest: the first machine would leak. A
// released resource is open again: its creation ended after the release.
func (s *Operations) Created(ctx context.Context, f activities.Fence, resourceID, externalID string) error {
	return s.changeResource(ctx, f, resourceID, func(ctx context.Context, tx *tx, r activities.Resource) error {
		if r.State == activities.ResourceCreated && r.ExternalID == externalID {
			return nil
		}
		if r.State == activities.ResourceCreated {
			return schema.NewError(schema.KindInvalidRequest, "resource %s is %s as %q, not %q",
				resourceID, r.State, r.ExternalID, externalID).WithReason("resource_mismatch")
		}
		r.ExternalID = externalID
		noteResource(tx, f, audit.ResourceCreated, r)
		if err := tx.CreatedResource(ctx, resourceID, externalID); err != nil || r.Kind != kindInstance {
			return err
		}
		return tx.SetInstanceExternalID(ctx, f.NodeID, externalID)
	})
}

// Released records that the resource is gone. A second call is a no-op.
func (s *Operations) Released(ctx context.Context, f activities.Fence, resourceID string) error {
	return s.changeResource(ctx, f, resourceID, func(ctx context.Context, tx *tx, r activities.Resource) error {
		if r.State == activities.ResourceReleased {
			return nil
		}
		noteResource(tx, f, audit.ResourceReleased, r)
		return tx.ReleasedResource(ctx, resourceID)
	})
}

// Open returns the node's resources that are not released, oldest first.
func (s *Operations) Open(ctx context.Context, nodeID string) ([]activities.Resource, error) {
	if !schema.IsID(nodeID) {
		return nil, errNoNode(nodeID)
	}
	rows, err := query(ctx, s.db, "reading the ledger of node "+nodeID, func(ctx context.Context) ([]sqlc.OpenResourcesRow, error) {
		return s.db.q.OpenResources(ctx, nodeID)
	})
	return convert(rows, func(r sqlc.OpenResourcesRow) activities.Resource { return activities.Resource(r) }), err
}

// changeResource runs fn on the resource under the fence.
func (s *Operations) changeResource(ctx context.Context, f activities.Fence, id string,
	fn func(context.Context, *tx, activities.Resource) error,
) error {
	return s.db.write(ctx, "changing resource "+id, func(ctx context.Context, tx *tx) error {
		if _, err := tx.lockHeld(ctx, f); err != nil {
			return err
		}
		r, err := tx.resource(ctx, f, id)
		if err != nil {
			return err
		}
		return fn(ctx, tx, r)
	})
}

func (tx *tx) resource(ctx context.Context, f activities.Fence, id string) (activities.Resource, error) {
	r, err := tx.GetResource(ctx, id, f.NodeID)
	return activities.Resource(r), orMissing(err, schema.NewError(schema.KindNotFound, "node %s has no resource %q", f.NodeID, id))
}

func noteResource(tx *tx, f activities.Fence, action string, r activities.Resource) {
	e := operationEvent(f, action, audit.Succeeded, "",
		map[string]string{"kind": r.Kind, "provider": r.Provider, "external_id": r.ExternalID})
	e.Target = r.ResourceID
	tx.note(e)
}
