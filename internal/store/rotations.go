package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Rotations stores rotations of keys. It implements activities.Rotations and
// adminapi.Rotations.
type Rotations struct{ db *db }

// BeginRotation implements adminapi.Rotations. A revocation ends an open rotation, because
// it must not wait, and an open revocation whose set is published.
func (s *Rotations) BeginRotation(ctx context.Context, r rotation.Rotation, by audit.Subject) (rotation.Rotation, error) {
	return write(ctx, s.db, "starting a rotation", func(ctx context.Context, tx *tx) (rotation.Rotation, error) {
		open, now, err := lockRotation(ctx, tx)
		switch {
		case schema.KindOf(err) == schema.KindNotFound:
		case err != nil:
			return r, err
		case r.Kind != rotation.RevokeKey:
			return r, errRotating(open)
		case open.Kind == rotation.RevokeKey && open.OldKey == r.OldKey:
			return open, nil
		case open.Kind == rotation.RevokeKey && open.SetVersion == 0: // its key would stay valid
			return r, errRotating(open)
		default:
			open.EndedAt, open.Outcome = &now, rotation.Superseded
			if err := decideRotation(ctx, tx, open); err != nil {
				return r, err
			}
			tx.note(rotationEvent(by, audit.RotationEnded, open, ""))
		}
		rows, err := tx.InsertRotation(ctx, sqlc.InsertRotationParams{RotationID: r.RotationID, Kind: string(r.Kind), Phase: string(r.Phase),
			OldKey: r.OldKey, GraceSeconds: r.GraceSeconds, Approved: r.Approved, Actor: by.Actor, Via: by.Via, Reason: r.Reason})
		if err != nil {
			return r, err
		}
		if rows == 0 { // another request inserted one first
			return r, schema.NewError(schema.KindOperationInProgress, "another rotation has started").WithNext("gpuaas rotate show")
		}
		tx.note(rotationEvent(by, audit.RotationStarted, r, r.Reason))
		stored, err := tx.OpenRotation(ctx)
		return rotationOf(stored), err
	})
}

func errRotating(open rotation.Rotation) error {
	return schema.NewError(schema.KindOperationInProgress, "a rotation of %s is in phase %s, and there can be only one", open.Kind, open.Phase).
		WithReason("rotation_open").WithNext("gpuaas rotate show")
}

// OpenRotation implements activities.Rotations.
func (s *Rotations) OpenRotation(ctx context.Context) (rotation.Rotation, time.Time, error) {
	row, err := query(ctx, s.db, "reading the rotation", func(ctx context.Context) (sqlc.OpenRotationRow, error) {
		row, err := s.db.q.OpenRotation(ctx)
		return row, orMissing(err, errNoRotation())
	})
	return rotationOf(row), row.Now, err
}

// NewestRotation implements adminapi.Rotations.
func (s *Rotations) NewestRotation(ctx context.Context) (rotation.Rotation, time.Time, error) {
	row, err := query(ctx, s.db, "reading the rotation", func(ctx context.Context) (sqlc.NewestRotationRow, error) {
		row, err := s.db.q.NewestRotation(ctx)
		return row, orMissing(err, errNoRotation())
	})
	return rotationOf(sqlc.OpenRotationRow(row)), row.Now, err
}

func errNoRotation() error {
	return schema.NewError(schema.KindNotFound, "there is no rotation").WithNext("gpuaas rotate --help")
}

// SaveRotation implements activities.Rotations: the set and the record change in one
// transaction, so that a caller that was overtaken publishes nothing.
func (s *Rotations) SaveRotation(ctx context.Context, r rotation.Rotation, set *trust.StoredSet) error {
	by := audit.Subject{Actor: systemActor}
	return s.db.write(ctx, "recording the rotation", func(ctx context.Context, tx *tx) error {
		if set != nil {
			if err := putSet(ctx, tx, *set, by); err != nil {
				return err
			}
		}
		if err := saveRotation(ctx, tx, r); err != nil {
			return err
		}
		if r.Kind == rotation.NodeCA {
			tx.notify(channelSets, "") // replicas of the API read the node CAs
		}
		action := audit.RotationChanged
		if r.EndedAt != nil {
			action = audit.RotationEnded
		}
		tx.note(rotationEvent(by, action, r, ""))
		return nil
	})
}

// saveRotation writes a rotation. KindFenced if it changed since it was read.
func saveRotation(ctx context.Context, tx *tx, r rotation.Rotation) error {
	rows, err := tx.SaveRotation(ctx, sqlc.SaveRotationParams{RotationID: r.RotationID, Step: r.Step, Phase: string(r.Phase),
		PhaseSince: r.PhaseSince, OldKey: r.OldKey, NewKey: r.NewKey, SetVersion: r.SetVersion, Approved: r.Approved, Paused: r.Paused,
		CaBundle: r.CA.Bundle, CaIssuer: r.CA.Issuer, CaIssuerKey: r.CA.IssuerKey,
		EndedAt: r.EndedAt, Outcome: string(r.Outcome)})
	return savedOne(rows, err)
}

// decideRotation writes what a decision changes. KindFenced as saveRotation.
func decideRotation(ctx context.Context, tx *tx, r rotation.Rotation) error {
	rows, err := tx.DecideRotation(ctx, sqlc.DecideRotationParams{RotationID: r.RotationID, Step: r.Step, Phase: string(r.Phase),
		PhaseSince: r.PhaseSince, SetVersion: r.SetVersion, Approved: r.Approved, Paused: r.Paused,
		CaBundle: r.CA.Bundle, CaIssuer: r.CA.Issuer, CaIssuerKey: r.CA.IssuerKey,
		EndedAt: r.EndedAt, Outcome: string(r.Outcome)})
	return savedOne(rows, err)
}

func savedOne(rows int64, err error) error {
	if err == nil && rows == 0 {
		err = schema.NewError(schema.KindFenced, "the rotation has changed since it was read").WithReason("rotation_changed")
	}
	return err
}

// NoteChecked implements activities.Rotations.
func (s *Rotations) NoteChecked(ctx context.Context, rotationID, failure string) error {
	return s.db.Call(ctx, "recording a check of the rotation", func(ctx context.Context) error {
		return s.db.q.NoteRotationChecked(ctx, cleanText(failure), rotationID)
	})
}

// RotationProgress implements activities.Rotations and adminapi.Rotations.
func (s *Rotations) RotationProgress(ctx context.Context, r rotation.Rotation) (rotation.Progress, error) {
	return query(ctx, s.db, "reading the progress of the rotation", func(ctx context.Context) (rotation.Progress, error) {
		bundle, issuer := r.Asked()
		counts, err := s.db.q.RotationCounts(ctx, sqlc.RotationCountsParams{RotationID: r.RotationID, KeyID: r.Draining(), SetVersion: r.SetVersion,
			CaBundle: bundle, CaIssuer: issuer})
		if err != nil {
			return rotation.Progress{}, err
		}
		p := rotation.Progress{Nodes: int(counts.Nodes), Confirmed: int(counts.Confirmed), Waived: int(counts.Waived),
			OpenTasks: int(counts.OpenTasks), Waiting: []rotation.Waiting{}}
		if r.Spec().Reload {
			replicas, err := s.db.q.ReplicasReloaded(ctx, r.CA.Bundle, rotation.ReplicaGone.Seconds())
			if err != nil {
				return p, err
			}
			p.Replicas, p.Reloaded = int(replicas.Replicas), int(replicas.Reloaded)
		}
		if !r.Spec().Confirm || !r.Published() {
			return p, nil
		}
		rows, err := s.db.q.RotationWaiting(ctx, sqlc.RotationWaitingParams{SetVersion: r.SetVersion, RotationID: r.RotationID, Most: rotation.MaxShown,
			CaBundle: bundle, CaIssuer: issuer})
		for _, n := range rows {
			p.Waiting = append(p.Waiting, rotation.Waiting{NodeID: n.NodeID, Host: n.Host, State: string(n.State),
				SetVersion: n.SetVersion, SetLost: n.SetLost, Issuer: n.Issuer, CABundle: n.CaBundle, LastHeartbeatAt: n.LastHeartbeatAt})
		}
		return p, err
	})
}

// DecideRotation implements adminapi.Rotations.
func (s *Rotations) DecideRotation(ctx context.Context, d rotation.Decided, by audit.Subject) (rotation.Rotation, error) {
	return write(ctx, s.db, "deciding about the rotation", func(ctx context.Context, tx *tx) (rotation.Rotation, error) {
		r, now, err := lockRotation(ctx, tx)
		if err != nil {
			return r, err
		}
		after, err := r.Decide(d.Decision, now)
		e := rotationEvent(by, audit.RotationDecided, after, d.Reason)
		e.Detail["decision"] = string(d.Decision)
		if err != nil {
			return r, refuse(err, e)
		}
		if d.Decision == rotation.Waive {
			waived, err := tx.WaiveNodes(ctx, sqlc.WaiveNodesParams{RotationID: r.RotationID, NodeIds: append([]string{}, d.NodeIDs...),
				Offline: d.Offline, SilentSeconds: lifecycle.SilentAfter.Seconds()})
			if err != nil {
				return r, err
			}
			e.Detail["nodes"] = strconv.Itoa(len(waived))
			for _, id := range waived {
				n := e
				n.Stream = id
				tx.note(n)
			}
		}
		if err := decideRotation(ctx, tx, after); err != nil {
			return r, err
		}
		tx.note(e)
		stored, err := tx.NewestRotation(ctx)
		return rotationOf(sqlc.OpenRotationRow(stored)), err
	})
}

func lockRotation(ctx context.Context, tx *tx) (rotation.Rotation, time.Time, error) {
	row, err := tx.LockOpenRotation(ctx)
	return rotationOf(sqlc.OpenRotationRow(row)), row.Now, orMissing(err, errNoRotation())
}

// TasksSignedBy implements activities.Rotations.
func (s *Rotations) TasksSignedBy(ctx context.Context, keyID string, limit int) ([]activities.SignedTask, error) {
	rows, err := query(ctx, s.db, "reading tasks to sign again", func(ctx context.Context) ([]sqlc.TasksSignedByRow, error) {
		return s.db.q.TasksSignedBy(ctx, keyID, int32(limit))
	})
	var all []activities.SignedTask
	for _, r := range rows {
		all = append(all, activities.SignedTask{TaskID: r.TaskID, NodeID: r.NodeID, OperationID: r.OperationID, Incarnation: r.Incarnation,
			Seq: r.Seq, Type: r.Type, BodySHA256: r.BodySha256, Envelope: r.Envelope})
	}
	return all, err
}

// VoidTask implements activities.Rotations.
func (s *Rotations) VoidTask(ctx context.Context, taskID, reason string) error {
	return s.db.write(ctx, "voiding task "+taskID, func(ctx context.Context, tx *tx) error {
		t, err := tx.lockTask(ctx, taskID, nil)
		if err != nil || t.Status.Terminal() {
			return err
		}
		f := activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, Actor: systemActor, CorrelationID: t.CorrelationID}
		return cancelTask(ctx, tx, f, t, audit.Succeeded, cleanText(reason))
	})
}

// ReplaceEnvelope implements activities.Rotations and wakes the task's node.
func (s *Rotations) ReplaceEnvelope(ctx context.Context, taskID string, envelope []byte) error {
	digest, err := trust.EnvelopeDigest(envelope)
	if err != nil {
		return err
	}
	return s.db.write(ctx, "storing the new signature of task "+taskID, func(ctx context.Context, tx *tx) error {
		nodes, err := tx.ReplaceEnvelope(ctx, sqlc.ReplaceEnvelopeParams{TaskID: taskID, Envelope: envelope,
			KeyID: trust.SigningKey(envelope), BodySha256: digest})
		for _, n := range nodes {
			tx.wakeNode(n)
		}
		return err
	})
}

func rotationEvent(by audit.Subject, action string, r rotation.Rotation, reason string) audit.Event {
	e := subjectEvent(by, audit.SystemStream, action, r.RotationID, map[string]string{"kind": string(r.Kind), "phase": string(r.Phase),
		"old_key": r.OldKey, "new_key": r.NewKey})
	if r.SetVersion > 0 {
		e.Detail["set_version"] = strconv.FormatInt(r.SetVersion, 10)
	}
	if r.Outcome != "" {
		e.Detail["outcome"] = string(r.Outcome)
	}
	e.Reason = reason
	return e
}

func rotationOf(row sqlc.OpenRotationRow) rotation.Rotation {
	return rotation.Rotation{RotationID: row.RotationID, Kind: rotation.Kind(row.Kind), Phase: rotation.Phase(row.Phase), Step: row.Step,
		OldKey: row.OldKey, NewKey: row.NewKey, SetVersion: row.SetVersion, PhaseSince: row.PhaseSince, GraceSeconds: row.GraceSeconds,
		Approved: row.Approved, Paused: row.Paused, Actor: row.Actor, Reason: row.Reason, StartedAt: row.StartedAt, EndedAt: row.EndedAt,
		CA:      rotation.CA{Bundle: row.CaBundle, Issuer: row.CaIssuer, IssuerKey: row.CaIssuerKey},
		Outcome: rotation.Outcome(row.Outcome), CheckedAt: row.CheckedAt, Failure: row.Failure}
}
