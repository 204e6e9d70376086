package store

import (
	"context"
	"encoding/json"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// NodesToUpdate implements activities.Rotations.
func (s *Rotations) NodesToUpdate(ctx context.Context, r rotation.Rotation, limit int) ([]activities.TrustUpdate, error) {
	bundle, issuer := r.Asked()
	rows, err := query(ctx, s.db, "listing nodes to update", func(ctx context.Context) ([]sqlc.NodesToUpdateRow, error) {
		return s.db.q.NodesToUpdate(ctx, sqlc.NodesToUpdateParams{RotationID: r.RotationID, Phase: string(r.Phase), CaBundle: bundle,
			CaIssuer: issuer, SilentSeconds: lifecycle.SilentAfter.Seconds(), RepeatSeconds: activities.TrustUpdateRepeat.Seconds(), Most: int32(limit)})
	})
	var all []activities.TrustUpdate
	for _, n := range rows {
		all = append(all, activities.NewTrustUpdate(r, n.NodeID, n.Incarnation, n.NextSeq))
	}
	return all, err
}

// SendUpdate implements activities.Rotations and wakes the node's polls.
func (s *Rotations) SendUpdate(ctx context.Context, r rotation.Rotation, u activities.TrustUpdate, envelope []byte) error {
	params, err := json.Marshal(u.Params)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the params of task %s", u.TaskID)
	}
	digest, err := trust.EnvelopeDigest(envelope)
	if err != nil {
		return err
	}
	f := activities.Fence{NodeID: u.NodeID, OperationID: r.RotationID, Actor: systemActor, CorrelationID: r.RotationID}
	return s.db.write(ctx, "storing task "+u.TaskID, func(ctx context.Context, tx *tx) error {
		if _, err := tx.lockNode(ctx, u.NodeID); err != nil {
			return err
		}
		// The tasks of earlier phases ask for what is outdated.
		if err := tx.voidTasks(ctx, u.NodeID, &r.RotationID, systemActor, ""); err != nil {
			return err
		}
		rows, err := tx.InsertUpdateTask(ctx, sqlc.InsertUpdateTaskParams{TaskID: u.TaskID, Seq: u.Seq, Type: string(task.UpdateTrust),
			Effect: string(task.EffectIdempotent), Params: params, Step: u.Step, Deadline: u.Deadline, Envelope: envelope, BodySha256: digest,
			KeyID: trust.SigningKey(envelope), NodeID: u.NodeID, Incarnation: u.Incarnation, RotationID: r.RotationID, RotationStep: r.Step})
		switch {
		case err != nil:
			return err
		case rows == 0: // with the error, the tasks stay open
			return schema.NewError(schema.KindFenced, "rotation %s has changed, or task %s is stored", r.RotationID, u.TaskID)
		}
		tx.note(taskEvent(f, audit.TaskCreated, u.TaskID, audit.Succeeded, "", map[string]string{"type": string(task.UpdateTrust), "step": u.Step}))
		tx.wakeNode(u.NodeID)
		return nil
	})
}
