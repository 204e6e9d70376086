package adminapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Rotations stores rotations of keys.
type Rotations interface {
	// NewestSet returns the newest verifier set. KindNotFound if there is none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// NewestRotation returns the open rotation, or the last one, with the database's time.
	// KindNotFound if there was none.
	NewestRotation(ctx context.Context) (rotation.Rotation, time.Time, error)
	// RotationProgress returns what the rotation's phase waits for.
	RotationProgress(ctx context.Context, r rotation.Rotation) (rotation.Progress, error)
	// BeginRotation stores a rotation with its audit row. KindOperationInProgress while
	// another one is open; a revocation ends it instead, unless it is another one without a set.
	BeginRotation(ctx context.Context, r rotation.Rotation, by audit.Subject) (rotation.Rotation, error)
	// DecideRotation applies a decision to the open rotation with its audit row, as
	// rotation.Rotation.Decide specifies. KindNotFound if none is open.
	DecideRotation(ctx context.Context, d rotation.Decided, by audit.Subject) (rotation.Rotation, error)
}

// RotationDriver starts the workflow of rotations.
type RotationDriver interface {
	// Drive starts the workflow, or makes a running one look at the rotation.
	Drive(ctx context.Context, r rotation.Rotation) error
}

// rotations serves the keys that nodes trust.
type rotations struct{ base }

// trust shows the newest verifier set.
func (h rotations) trust(c *call) (any, error) {
	stored, err := h.Rotations.NewestSet(c.Context())
	if err != nil {
		return nil, err
	}
	set, err := trust.ParseVerifierSet(stored.Document)
	if err != nil {
		return nil, err
	}
	p, err := h.Rotations.RotationProgress(c.Context(), rotation.Rotation{RotationID: schema.NewID(), SetVersion: stored.Version})
	d := set.Doc
	return rotation.Trust{Version: d.Version, Hash: set.Hash, Epoch: d.Epoch, IssuedAt: d.IssuedAt, ExpiresAt: d.ExpiresAt,
		Keys: rotation.KeysOf(d.Keys), Roots: rotation.KeysOf(d.Roots), SignedBy: trust.SigningKey(stored.Document),
		Nodes: p.Nodes, Confirmed: p.Confirmed}, err
}

// show shows the open rotation, or the last one.
func (h rotations) show(c *call) (any, error) {
	r, now, err := h.Rotations.NewestRotation(c.Context())
	if err != nil {
		return nil, err
	}
	return h.view(c.Context(), r, now)
}

func (h rotations) view(ctx context.Context, r rotation.Rotation, now time.Time) (rotation.View, error) {
	p, err := h.Rotations.RotationProgress(ctx, r)
	return rotation.Describe(r, p, now), err
}

// start starts a rotation.
func (h rotations) start(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkRotation)
	if err != nil {
		return nil, err
	}
	r := rotation.Begin(req.Kind, req.Key, time.Duration(*req.GraceSeconds)*time.Second)
	r.Reason, r.Approved, r.Actor = req.Reason, req.Approved, c.by.Actor
	newest, err := h.Rotations.NewestSet(c.Context())
	if err == nil && req.Kind == rotation.RevokeKey && !h.revokes(c.Context(), req.Key) {
		err = checkRevocable(newest, req.Key)
	}
	if err != nil {
		return nil, err
	}
	if req.DryRun {
		r.SetVersion = newest.Version
		p, err := h.Rotations.RotationProgress(c.Context(), r)
		if err != nil {
			return nil, err
		}
		return nil, edge.JSON(c.w, http.StatusOK, rotation.Preview(r, p))
	}
	if r, err = h.Rotations.BeginRotation(c.Context(), r, c.by); err != nil {
		return nil, err
	}
	return h.drive(c, r)
}

// drive makes the workflow look at the rotation. The rotation is on record, so that a failure
// only delays it: the schedule of the verifier sets starts the workflow as well.
func (h rotations) drive(c *call, r rotation.Rotation) (any, error) {
	if err := h.RotationDriver.Drive(c.Context(), r); err != nil {
		e := *schema.AsError(err)
		e.Message = "the change is recorded, but its workflow is not started: " + e.Message
		e.Next = "gpuaas rotate resume --reason TEXT"
		return nil, &e
	}
	return h.view(c.Context(), r, r.CheckedAt)
}

// maxGraceSeconds is thirty days.
const maxGraceSeconds = 30 * 24 * 3600

// checkRotation checks a request for a rotation and sets its grace period.
func checkRotation(s *rotation.Start) error {
	if s.GraceSeconds == nil {
		s.GraceSeconds = new(int64(rotation.DefaultGrace / time.Second))
	}
	switch {
	case s.Kind != rotation.RevokeKey && !slices.Contains(rotation.Kinds(), s.Kind):
		return badField("kind", "must be task-key, set-root, node-ca or revoke-key")
	case (s.Key != "") != (s.Kind == rotation.RevokeKey):
		return badField("key", "is the key to revoke, for the kind revoke-key only")
	case s.Key != "" && !validName(s.Key, 64):
		return badField("key", "must be the ID of a key")
	case *s.GraceSeconds < 0 || *s.GraceSeconds > maxGraceSeconds:
		return badField("grace_seconds", "must be 0 to 2592000, thirty days")
	}
	return checkReason(s.Reason, true)
}

// revokes reports whether the open rotation revokes the key: the request is then a repeat.
func (h rotations) revokes(ctx context.Context, key string) bool {
	r, _, err := h.Rotations.NewestRotation(ctx)
	return err == nil && r.EndedAt == nil && r.Kind == rotation.RevokeKey && r.OldKey == key
}

// checkRevocable rejects a key that the newest set does not have, or has revoked.
func checkRevocable(newest trust.StoredSet, key string) error {
	set, err := trust.ParseVerifierSet(newest.Document)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(set.Doc.Keys, func(k trust.VerifierKey) bool { return k.KeyID == key })
	switch {
	case i < 0:
		return schema.NewError(schema.KindNotFound, "the newest verifier set has no key %q", key).WithNext("gpuaas trust show")
	case set.Doc.Keys[i].State == trust.KeyRevoked:
		return schema.NewError(schema.KindInvalidRequest, "key %q is revoked", key).WithReason("key_revoked").WithNext("gpuaas rotate show")
	}
	return nil
}

// decide applies a decision to the open rotation.
func (h rotations) decide(d rotation.Decision) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.Decode, func(r *rotation.Decide) error { return checkRotationDecision(d, *r) })
		if err != nil {
			return nil, err
		}
		of := rotation.Decided{Decision: d, Reason: req.Reason, Offline: req.Offline}
		for _, name := range req.Nodes {
			node, err := h.named(c.Context(), name)
			if err != nil {
				return nil, err
			}
			of.NodeIDs = append(of.NodeIDs, node.ID)
		}
		r, err := h.Rotations.DecideRotation(c.Context(), of, c.by)
		if err != nil {
			return nil, err
		}
		return h.drive(c, r)
	}
}

// maxWaived is the number of nodes that one request waives by name.
const maxWaived = 100

func checkRotationDecision(d rotation.Decision, r rotation.Decide) error {
	switch names := len(r.Nodes) > 0 || r.Offline; {
	case names && d != rotation.Waive:
		return badField("nodes", "is for the decision waive only")
	case !names && d == rotation.Waive:
		return badField("nodes", "is required for the decision waive, or offline")
	case len(r.Nodes) > maxWaived:
		return badField("nodes", "must be at most 100")
	}
	return checkReason(r.Reason, true)
}
