package activities

import (
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Rotations stores rotations. Errors are *schema.Error.
type Rotations interface {
	// OpenRotation returns the open rotation and the database's time. KindNotFound if there
	// is none.
	OpenRotation(ctx context.Context) (rotation.Rotation, time.Time, error)
	// SaveRotation writes a rotation and, in the same transaction, stores the set that its
	// phase publishes; nil for none. KindFenced if the rotation has changed since it was
	// read, and reason set_outdated if the set does not follow the newest one. Neither
	// changes anything.
	SaveRotation(ctx context.Context, r rotation.Rotation, set *trust.StoredSet) error
	// NoteChecked records that the rotation was looked at, and what prevented it from
	// continuing, "" for nothing.
	NoteChecked(ctx context.Context, rotationID, failure string) error
	// RotationProgress returns what the rotation's phase waits for.
	RotationProgress(ctx context.Context, r rotation.Rotation) (rotation.Progress, error)
	// TasksSignedBy returns up to limit open tasks whose record names a key as their signer.
	TasksSignedBy(ctx context.Context, keyID string, limit int) ([]SignedTask, error)
	// NodesToUpdate returns up to limit nodes to which agent.update_trust must be sent in
	// the rotation's phase: they have not confirmed it, they sent a heartbeat recently, and
	// have no such task, open or ended within TrustUpdateRepeat.
	NodesToUpdate(ctx context.Context, r rotation.Rotation, limit int) ([]TrustUpdate, error)
	// SendUpdate stores the task with its signed envelope, voids the rotation's earlier tasks
	// of the node and wakes the node's poll. KindFenced, and nothing changes, if the rotation
	// has changed since it was read, or the task or another one with its sequence is stored.
	SendUpdate(ctx context.Context, r rotation.Rotation, u TrustUpdate, envelope []byte) error
	// ReplaceEnvelope replaces the envelope of an open task by one with the same signed
	// body. Nothing changes if the task has ended or has another body.
	ReplaceEnvelope(ctx context.Context, taskID string, envelope []byte) error
	// VoidTask ends an open task that no node holds, with a reason for its activity, and asks
	// the node that holds it to stop. Nothing changes if the task has ended.
	VoidTask(ctx context.Context, taskID, reason string) error
}

// VerifierSets stores verifier sets. Errors are *schema.Error.
type VerifierSets interface {
	// NewestSet returns the newest verifier set. KindNotFound if there is none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// PutSet stores the successor of the newest set. Reason set_outdated if the set does
	// not follow the newest one.
	PutSet(ctx context.Context, set trust.StoredSet, by audit.Subject) error
}

// KeyRotator makes keys and signs verifier sets in Vault. It checks the newest set against
// Vault first: the root key signs nothing that only the database vouches for. Errors are
// *schema.Error.
type KeyRotator interface {
	// PlanKeys returns the IDs of the key that a rotation replaces and of the one that
	// replaces it. It creates no key.
	PlanKeys(ctx context.Context, r rotation.Rotation, newest trust.StoredSet) (oldKey, newKey string, err error)
	// TaskKey returns the public part of a version of the task key. It reads Vault, because the
	// database is no proof of a key.
	TaskKey(ctx context.Context, keyID string) (trust.VerifierKey, error)
	// SignSet returns the successor of the newest set with the target's content. due is
	// false, and the set the newest one, if it already has that content and is not Restored. The
	// successor of a Restored set begins an epoch. SignSet creates a
	// key of the target that does not exist if it follows the latest one. KindInternal if the
	// target makes a revoked key valid again.
	SignSet(ctx context.Context, newest trust.StoredSet, t rotation.Target) (set trust.StoredSet, due bool, err error)
	// PlanCA returns the names of the node CA's issuer that issues now and of the one that
	// replaces it. It creates no issuer.
	PlanCA(ctx context.Context) (oldCA, newCA string, err error)
	// ApplyCA makes the node CA as the rotation's phase requires, and returns what nodes must
	// have. A second call changes nothing.
	ApplyCA(ctx context.Context, r rotation.Rotation) (rotation.CA, error)
	// RenewSet returns the successor of the newest set with the same content. due is false
	// if more than half of its lifetime is left, unless the set is Restored and no restore mode
	// is on.
	RenewSet(ctx context.Context, newest trust.StoredSet) (set trust.StoredSet, due bool, err error)
	// FinishKey ends the use of the key that the rotation replaced. A second call changes
	// nothing.
	FinishKey(ctx context.Context, r rotation.Rotation) error
}

// Driver starts the workflow of rotations.
type Driver interface {
	// Drive starts the workflow of rotations, or makes a running one look at the rotation.
	Drive(ctx context.Context, r rotation.Rotation) error
}

// Trust has the activities that rotate keys and renew verifier sets.
type Trust struct {
	Rotations Rotations
	Sets      VerifierSets
	Rotator   KeyRotator
	Driver    Driver
	// Signer signs the open tasks of a revoked key again, under the newest set that Follow has
	// read. Their times stay the same.
	Signer Signer
	// Follow makes Signer use the newest set.
	Follow func(ctx context.Context) error
	// NewTasks signs each new task.
	NewTasks TaskSigner
}

// RotationStatus is a rotation and why it stays in its phase.
type RotationStatus struct {
	Rotation rotation.Rotation  `json:"rotation"`
	Progress rotation.Progress  `json:"progress"`
	Blockers []rotation.Blocker `json:"blockers,omitempty"`
	// Open is false if there is no open rotation.
	Open bool `json:"open"`
	// Again is set if the rotation changed, so that the next look may follow at once.
	Again bool `json:"again,omitempty"`
}

// AdvanceRotation makes the next change of the open rotation, if nothing blocks it. Each
// change is stored only if the rotation is still as it was read, so a second run finds the
// change and makes the one after it.
func (t *Trust) AdvanceRotation(ctx context.Context) (RotationStatus, error) {
	r, now, err := t.Rotations.OpenRotation(ctx)
	if schema.KindOf(err) == schema.KindNotFound {
		return RotationStatus{}, nil
	}
	if err != nil {
		return RotationStatus{}, Fail(err)
	}
	s := RotationStatus{Rotation: r, Open: true}
	err = t.advance(ctx, &s, now)
	if e := schema.AsError(err); e != nil && (e.Kind == schema.KindFenced || e.Reason == "set_outdated") {
		s.Again = true // another write came first
		return s, nil
	}
	failure := ""
	if err != nil {
		failure = rotation.FailureOf(err)
	}
	if noted := t.Rotations.NoteChecked(ctx, r.RotationID, failure); err == nil {
		err = noted
	}
	return s, Fail(err)
}

// advance makes one change, or finds why none is possible.
func (t *Trust) advance(ctx context.Context, s *RotationStatus, now time.Time) (err error) {
	r := &s.Rotation
	switch {
	case r.Paused:
	case r.NewKey == "":
		s.Again = true
		return t.plan(ctx, r)
	case r.Kind == rotation.NodeCA:
		if s.Again, err = t.applyCA(ctx, r, now); err != nil || s.Again {
			return err
		}
	default:
		if s.Again, err = t.publish(ctx, r); err != nil || s.Again {
			return err
		}
	}
	if r.Phase == rotation.Revoke && !r.Paused {
		if err := t.signAgain(ctx); err != nil {
			return err
		}
	}
	if s.Progress, err = t.Rotations.RotationProgress(ctx, *r); err != nil {
		return err
	}
	s.Blockers = r.Blockers(s.Progress, now)
	var failed error // of a node: it holds up no other, and no phase if the node is waived
	if r.Kind == rotation.NodeCA && !r.Paused && !slices.Contains(s.Blockers, rotation.BlockedReload) {
		if failed = t.sendUpdates(ctx, *r); schema.KindOf(failed) == schema.KindServiceUnavailable {
			return failed
		}
	}
	if len(s.Blockers) > 0 {
		return failed
	}
	s.Again = true
	next := r.Advance(now)
	if next.Outcome == rotation.Completed {
		if err := t.Rotator.FinishKey(ctx, next); err != nil {
			return err
		}
	}
	if err := t.Rotations.SaveRotation(ctx, next, nil); err != nil {
		return err
	}
	*r = next
	return nil
}

// plan records the keys before one is created, so that a second run creates the same one.
func (t *Trust) plan(ctx context.Context, r *rotation.Rotation) error {
	if r.Kind == rotation.NodeCA {
		var err error
		if r.OldKey, r.NewKey, err = t.Rotator.PlanCA(ctx); err != nil {
			return err
		}
		return t.Rotations.SaveRotation(ctx, *r, nil)
	}
	newest, err := t.Sets.NewestSet(ctx)
	if err != nil {
		return err
	}
	if r.OldKey, r.NewKey, err = t.Rotator.PlanKeys(ctx, *r, newest); err != nil {
		return err
	}
	return t.Rotations.SaveRotation(ctx, *r, nil)
}

// publish stores the set of the phase, unless it is stored. After a restore of the database it
// stores it again, because nodes may have later sets.
func (t *Trust) publish(ctx context.Context, r *rotation.Rotation) (changed bool, err error) {
	newest, err := t.Sets.NewestSet(ctx)
	if err != nil || r.SetVersion > 0 && !newest.Restored {
		return false, err
	}
	current, err := trust.ParseVerifierSet(newest.Document)
	if err != nil {
		return false, err
	}
	target, publishes := r.Target(current.Active().KeyID)
	if !publishes {
		return false, nil
	}
	set, due, err := t.Rotator.SignSet(ctx, newest, target)
	if err != nil {
		return false, err
	}
	r.SetVersion = set.Version
	if due {
		return true, t.Rotations.SaveRotation(ctx, *r, &set)
	}
	return true, t.Rotations.SaveRotation(ctx, *r, nil)
}

// Maintenance is the result of MaintainTrust.
type Maintenance struct {
	// SetVersion is the newest verifier set, ExpiresAt its expiry.
	SetVersion int64     `json:"set_version"`
	ExpiresAt  time.Time `json:"expires_at"`
	// Renewed is set if the set is a new one.
	Renewed bool `json:"renewed,omitempty"`
}

// maintenanceActor is the actor of a renewal in the audit trail.
const maintenanceActor = "schedule maintain-trust"

// MaintainTrust renews the newest verifier set when half of its lifetime is over, and starts
// the workflow of an open rotation if none runs. A second run changes nothing.
func (t *Trust) MaintainTrust(ctx context.Context) (Maintenance, error) {
	if r, _, err := t.Rotations.OpenRotation(ctx); err == nil {
		if err := t.Driver.Drive(ctx, r); err != nil {
			return Maintenance{}, Fail(err)
		}
	} else if schema.KindOf(err) != schema.KindNotFound {
		return Maintenance{}, Fail(err)
	}
	newest, err := t.Sets.NewestSet(ctx)
	if err != nil {
		return Maintenance{}, Fail(err)
	}
	set, due, err := t.Rotator.RenewSet(ctx, newest)
	if err == nil && due {
		err = t.Sets.PutSet(ctx, set, audit.Subject{Actor: maintenanceActor})
		newest = set
	}
	if err != nil {
		return Maintenance{}, Fail(err)
	}
	doc, err := trust.ParseVerifierSet(newest.Document)
	return Maintenance{SetVersion: newest.Version, ExpiresAt: doc.Doc.ExpiresAt, Renewed: due}, Fail(err)
}
