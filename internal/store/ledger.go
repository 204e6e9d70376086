package store

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// Ledger implements activities.Ledger.
type Ledger struct{ s *Store }

// Ledger returns the resource ledger.
func (s *Store) Ledger() *Ledger { return &Ledger{s} }

// kindInstance is the kind of a ledger entry that is the node's machine.
const kindInstance = "instance"

// Plan records the intent to create, before the outside call. Twice is once; it
// returns what stands.
func (l *Ledger) Plan(ctx context.Context, f activities.Fence, r activities.Resource) (activities.Resource, error) {
	var stands activities.Resource
	err := l.change(ctx, f, "planning resource "+r.ResourceID, func(ctx context.Context, u *unit) error {
		rows, err := u.PlanResource(ctx, sqlc.PlanResourceParams{ResourceID: r.ResourceID, NodeID: f.NodeID,
			OperationID: f.OperationID, Kind: r.Kind, Provider: r.Provider})
		if err != nil {
			return err
		}
		if stands, err = u.resource(ctx, f, r.ResourceID); err == nil && rows > 0 {
			u.noteResource(f, audit.ResourcePlanned, stands)
		}
		return err
	})
	return stands, err
}

// Created records that the resource exists. Twice is once; a second machine
// under the same entry, or one that was released, is KindInvalidRequest: its
// first would leak.
func (l *Ledger) Created(ctx context.Context, f activities.Fence, resourceID, externalID string) error {
	return l.change(ctx, f, "recording resource "+resourceID, func(ctx context.Context, u *unit) error {
		r, err := u.resource(ctx, f, resourceID)
		if err != nil {
			return err
		}
		if r.State == activities.ResourceCreated && r.ExternalID == externalID {
			return nil
		}
		if r.State != activities.ResourcePlanned {
			return schema.NewError(schema.KindInvalidRequest, "resource %s is %s as %q, not %q",
				resourceID, r.State, r.ExternalID, externalID).WithReason("resource_mismatch")
		}
		if err := u.CreatedResource(ctx, resourceID, externalID); err != nil {
			return err
		}
		r.ExternalID = externalID
		u.noteResource(f, audit.ResourceCreated, r)
		if r.Kind != kindInstance {
			return nil
		}
		return u.SetInstanceExternalID(ctx, f.NodeID, externalID)
	})
}

// Released records that the resource is gone. Twice is once.
func (l *Ledger) Released(ctx context.Context, f activities.Fence, resourceID string) error {
	return l.change(ctx, f, "releasing resource "+resourceID, func(ctx context.Context, u *unit) error {
		r, err := u.resource(ctx, f, resourceID)
		if err != nil || r.State == activities.ResourceReleased {
			return err
		}
		u.noteResource(f, audit.ResourceReleased, r)
		return u.ReleasedResource(ctx, resourceID)
	})
}

// Open returns the node's entries that are not released, oldest first.
func (l *Ledger) Open(ctx context.Context, nodeID string) ([]activities.Resource, error) {
	var open []activities.Resource
	err := l.s.read(ctx, "reading the ledger of node "+nodeID, func(ctx context.Context) error {
		if !schema.IsID(nodeID) {
			return errNoNode(nodeID)
		}
		rows, err := l.s.q.OpenResources(ctx, nodeID)
		open = make([]activities.Resource, len(rows))
		for i, r := range rows {
			open[i] = activities.Resource(r)
		}
		return err
	})
	return open, err
}

// change runs fn under the fence.
func (l *Ledger) change(ctx context.Context, f activities.Fence, doing string, fn func(context.Context, *unit) error) error {
	return l.s.write(ctx, doing, func(ctx context.Context, u *unit) error {
		if _, _, err := u.owned(ctx, f); err != nil {
			return err
		}
		return fn(ctx, u)
	})
}

func (u *unit) resource(ctx context.Context, f activities.Fence, id string) (activities.Resource, error) {
	r, err := u.GetResource(ctx, id, f.NodeID)
	if notFound(err) {
		return activities.Resource{}, schema.Errorf(schema.KindNotFound, "node %s has no resource %q", f.NodeID, id)
	}
	return activities.Resource(r), err
}

func (u *unit) noteResource(f activities.Fence, action string, r activities.Resource) {
	e := event(f, action, audit.Succeeded, "",
		map[string]string{"kind": r.Kind, "provider": r.Provider, "external_id": r.ExternalID})
	e.Target = r.ResourceID
	u.note(e)
}
