package store

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// kindInstance is the kind of the resource that is the node's machine.
const kindInstance = "instance"

// Plan records the intent to create a resource, before the outside call. A second
// call changes nothing; both return the stored resource. KindFenced if the operation
// ended, undoes its work or does not hold the node.
func (s *Operations) Plan(ctx context.Context, f activities.Fence, r activities.Resource) (activities.Resource, error) {
	return write(ctx, s.db, "planning resource "+r.ResourceID, func(ctx context.Context, tx *tx) (activities.Resource, error) {
		op, err := tx.lockHeld(ctx, f)
		switch {
		case err != nil:
			return r, err
		case op.EndedAt != nil:
			return r, errOperationEnded(f)
		case lifecycle.IsUndo(op.Phase):
			return r, errUndoBegan(f)
		}
		rows, err := tx.PlanResource(ctx, sqlc.PlanResourceParams{ResourceID: r.ResourceID, NodeID: f.NodeID,
			OperationID: f.OperationID, Kind: r.Kind, Provider: r.Provider})
		if err != nil {
			return r, err
		}
		stored, err := tx.resource(ctx, f, r.ResourceID)
		if rows > 0 {
			noteResource(tx, f, audit.ResourcePlanned, "", resourceOf(stored))
		}
		return resourceOf(stored), err
	})
}

// Created implements activities.Ledger. It is not fenced: an operation that planned the
// resource may record it after it ended or lost the node, because the machine exists. Several
// provisionings of one instance plan the same resource. A
// second call with the same external id changes nothing. Another external id is
// KindInvalidRequest: the first machine would leak.
func (s *Operations) Created(ctx context.Context, f activities.Fence, resourceID, externalID string) error {
	return s.db.write(ctx, "recording resource "+resourceID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNodeOf(ctx, f)
		if err != nil {
			return err
		}
		op, err := tx.fenced(ctx, f)
		if err != nil {
			return err
		}
		stored, err := tx.resource(ctx, f, resourceID)
		switch r := resourceOf(stored); {
		case err != nil:
			return err
		case stored.OperationID != f.OperationID && op.Claim.Instance.InstanceID != resourceID:
			return errFenced(f, node.OpSeq)
		case r.State == activities.ResourceCreated && r.ExternalID == externalID:
			return nil
		case r.State == activities.ResourceCreated:
			return schema.NewError(schema.KindInvalidRequest, "resource %s is %s as %q, not %q",
				resourceID, r.State, r.ExternalID, externalID).WithReason("resource_mismatch")
		}
		return created(ctx, tx, f, stored, externalID, node.OpSeq == f.OpSeq && op.EndedAt == nil)
	})
}

// created stores the external id of a resource and, if the operation still holds the
// node, of the node's instance.
func created(ctx context.Context, tx *tx, f activities.Fence, stored sqlc.GetResourceRow, externalID string, holds bool) error {
	stored.ExternalID = externalID
	reason := ""
	if !holds {
		reason = lifecycle.ReasonOperationOver
	}
	noteResource(tx, f, audit.ResourceCreated, reason, resourceOf(stored))
	if err := tx.CreatedResource(ctx, stored.ResourceID, externalID); err != nil || stored.Kind != kindInstance || !holds {
		return err
	}
	return tx.SetInstanceExternalID(ctx, f.NodeID, externalID)
}

// Released records that the resource is gone. A second call is a no-op. KindFenced if the
// operation ended or does not hold the node.
func (s *Operations) Released(ctx context.Context, f activities.Fence, resourceID string) error {
	return s.db.write(ctx, "releasing resource "+resourceID, func(ctx context.Context, tx *tx) error {
		if err := tx.lockOpenHolder(ctx, f); err != nil {
			return err
		}
		stored, err := tx.resource(ctx, f, resourceID)
		if err != nil || stored.State == activities.ResourceReleased {
			return err
		}
		noteResource(tx, f, audit.ResourceReleased, "", resourceOf(stored))
		return tx.ReleasedResource(ctx, resourceID)
	})
}

// Open implements activities.Ledger.
func (s *Operations) Open(ctx context.Context, f activities.Fence) ([]activities.Resource, error) {
	return write(ctx, s.db, "reading the ledger of node "+f.NodeID, func(ctx context.Context, tx *tx) ([]activities.Resource, error) {
		if err := tx.lockOpenHolder(ctx, f); err != nil {
			return nil, err
		}
		rows, err := tx.OpenResources(ctx, f.NodeID)
		return convert(rows, func(r sqlc.OpenResourcesRow) activities.Resource { return activities.Resource(r) }), err
	})
}

func (tx *tx) resource(ctx context.Context, f activities.Fence, id string) (sqlc.GetResourceRow, error) {
	r, err := tx.GetResource(ctx, id, f.NodeID)
	return r, orMissing(err, schema.NewError(schema.KindNotFound, "node %s has no resource %q", f.NodeID, id))
}

func resourceOf(r sqlc.GetResourceRow) activities.Resource {
	return activities.Resource{ResourceID: r.ResourceID, NodeID: r.NodeID, Kind: r.Kind, Provider: r.Provider,
		ExternalID: r.ExternalID, State: r.State}
}

func noteResource(tx *tx, f activities.Fence, action, reason string, r activities.Resource) {
	e := operationEvent(f, action, audit.Succeeded, reason,
		map[string]string{"kind": r.Kind, "provider": r.Provider, "external_id": r.ExternalID})
	e.Target = r.ResourceID
	tx.note(e)
}
