package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// TrustUpdateRepeat is how long after the end of agent.update_trust a node that has not
	// confirmed the phase gets the task again.
	TrustUpdateRepeat = 2 * time.Minute
	// trustUpdateLife is how long the task may wait for its node.
	trustUpdateLife = time.Hour
	// updateBatch is how many nodes one look at a rotation sends the task to. A look follows
	// every 30 s: 10,000 nodes get it within an hour, and the certificates that they renew
	// then are a small part of what Vault can sign.
	updateBatch = 100
)

// TrustUpdate is agent.update_trust for one node in a phase of a rotation of the node CA.
type TrustUpdate struct {
	TaskID, NodeID, Step string
	Incarnation, Seq     int64
	Params               trust.TrustParams
	Deadline             time.Time
}

// NewTrustUpdate returns the task of the rotation's phase for a node, with the next sequence
// of the node's tasks.
func NewTrustUpdate(r rotation.Rotation, nodeID string, incarnation, seq int64) TrustUpdate {
	u := TrustUpdate{NodeID: nodeID, Incarnation: incarnation, Seq: seq, Step: fmt.Sprintf("%s.%s.%d", r.Phase, nodeID, seq),
		Params: trust.TrustParams{NodeCABundle: r.CA.Bundle}, Deadline: time.Now().Add(trustUpdateLife).UTC().Truncate(time.Second)}
	if _, issuer := r.Asked(); issuer != "" {
		u.Params.IssuerKey = r.CA.IssuerKey
	}
	u.TaskID = lifecycle.TaskID(r.RotationID, u.Step)
	return u
}

// applyCA makes the node CA as the phase requires, at each look, because Vault and the record
// do not change in one transaction: what a delayed run of an earlier phase changes, the next
// look repairs. changed is set if the record changed.
func (t *Trust) applyCA(ctx context.Context, r *rotation.Rotation, now time.Time) (changed bool, err error) {
	ca, err := t.Rotator.ApplyCA(ctx, *r)
	if err != nil {
		return false, err
	}
	if ca == r.CA {
		return false, nil
	}
	if r.CA = ca; r.Spec().Reload { // the replicas read the CA from now on
		r.PhaseSince = now
	}
	return true, t.Rotations.SaveRotation(ctx, *r, nil)
}

// sendUpdates sends nodes the task of the phase. The failure of one node holds up no other: the
// error is the first one.
func (t *Trust) sendUpdates(ctx context.Context, r rotation.Rotation) (failed error) {
	updates, err := t.Rotations.NodesToUpdate(ctx, r, updateBatch)
	if err != nil {
		return err
	}
	for _, u := range updates {
		envelope, err := t.signUpdate(ctx, r, u)
		if err == nil {
			err = t.Rotations.SendUpdate(ctx, r, u, envelope)
		}
		switch schema.KindOf(err) {
		case "", schema.KindFenced: // the next look sends what this one did not
		case schema.KindServiceUnavailable:
			return err
		default:
			failed = cmp.Or(failed, err)
		}
	}
	return failed
}

// signUpdate signs the task. It expects no operation, so that it does not end with one.
func (t *Trust) signUpdate(ctx context.Context, r rotation.Rotation, u TrustUpdate) ([]byte, error) {
	params, err := json.Marshal(u.Params)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding the params of task %s", u.TaskID)
	}
	return t.NewTasks.envelope(ctx, task.Payload{
		TaskID: u.TaskID, NodeID: u.NodeID, Incarnation: u.Incarnation, Type: task.UpdateTrust, Params: params,
		Seq: u.Seq, Attempt: 1, ExpiresAt: u.Deadline,
		OperationID: r.RotationID, WorkflowID: lifecycle.RotationWorkflowID, CorrelationID: r.RotationID,
	})
}
