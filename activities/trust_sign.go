package activities

import (
	"context"
	"encoding/json"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// signAgainBatch is how many tasks a look at a revocation signs again.
const signAgainBatch = 500

// SignedTask is an open task as the database has it.
type SignedTask struct {
	TaskID, NodeID, OperationID string
	Incarnation, Seq            int64
	Type                        task.Type
	// BodySHA256 is the digest of the signed body in hex.
	BodySHA256 string
	Envelope   []byte
}

// body returns the signed body of the task's envelope. KindInvalidRequest if the key did not
// sign it, or signed it for another task.
func (t SignedTask) body(key trust.VerifierKey) ([]byte, error) {
	body, _, err := trust.OpenEnvelope(task.PayloadType, t.Envelope, []trust.VerifierKey{key})
	if err != nil {
		return nil, err
	}
	var p task.Payload
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "parsing the signed body").WithReason(trust.ReasonBody)
	}
	same := p.TaskID == t.TaskID && p.NodeID == t.NodeID && p.OperationID == t.OperationID &&
		p.Incarnation == t.Incarnation && p.Seq == t.Seq && p.Type == t.Type
	if !same || schema.SHA256Hex(body) != t.BodySHA256 {
		return nil, schema.NewError(schema.KindInvalidRequest, "the envelope was signed for another task").WithReason(trust.ReasonBody)
	}
	return body, nil
}

// signAgain signs the open tasks of all revoked keys with the active one, because a revocation
// may have ended another one before its tasks were signed. Their signed body stays the same, so
// that a node that has one in its journal does not begin it again. It signs only what the revoked
// key signed for the task, and voids any other task: who can write to the database must not get a
// signature by it. Of each key it takes signAgainBatch tasks at most.
func (t *Trust) signAgain(ctx context.Context) error {
	newest, err := t.Sets.NewestSet(ctx)
	if err != nil {
		return err
	}
	set, err := trust.ParseVerifierSet(newest.Document)
	if err != nil {
		return err
	}
	for _, k := range set.Doc.Keys {
		if k.State != trust.KeyRevoked {
			continue
		}
		open, err := t.Rotations.TasksSignedBy(ctx, k.KeyID, signAgainBatch)
		if err == nil && len(open) > 0 {
			err = t.replaceAll(ctx, k.KeyID, open)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// replaceAll signs the open tasks of one revoked key again.
func (t *Trust) replaceAll(ctx context.Context, keyID string, open []SignedTask) error {
	revoked, err := t.Rotator.TaskKey(ctx, keyID)
	if err != nil {
		return err
	}
	if err := t.Follow(ctx); err != nil {
		return err
	}
	for _, o := range open {
		body, err := o.body(revoked)
		if err != nil {
			err = t.Rotations.VoidTask(ctx, o.TaskID, "its stored envelope is not the signed one: "+schema.AsError(err).Message)
		} else {
			err = t.replace(ctx, keyID, o.TaskID, body)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *Trust) replace(ctx context.Context, revoked, taskID string, body []byte) error {
	signed, err := t.Signer.Sign(ctx, body)
	if err != nil {
		return err
	}
	if trust.SigningKey(signed) == revoked {
		return schema.NewError(schema.KindServiceUnavailable, "this worker still signs with the revoked key").WithReason("signer_outdated")
	}
	return t.Rotations.ReplaceEnvelope(ctx, taskID, signed)
}
