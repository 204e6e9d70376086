package store

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// The reasons for a locked identity.
const (
	cloneOfSerial   = "superseded_serial"
	cloneOfSequence = "sequence_behind"
)

// clone is the evidence that two machines use one identity.
type clone struct {
	nodeID      string
	incarnation int64
	reason      string
}

// refuseClone locks the incarnation: both machines are refused until an operator
// reissues the enrollment.
func refuseClone(c clone, e audit.Event) error {
	e.Action, e.Result, e.Reason = audit.IdentityLocked, audit.Succeeded, c.reason
	return &refusal{err: errLocked(c.nodeID), event: e, clone: &c}
}

// lockIdentity locks the identity, once, and ends the node's open polls. It does not
// lock a newer incarnation.
func lockIdentity(ctx context.Context, tx *tx, c clone, e audit.Event) error {
	if _, err := tx.lockNode(ctx, c.nodeID); err != nil {
		return err
	}
	rows, err := tx.LockIdentity(ctx, c.reason, c.nodeID, c.incarnation)
	if err != nil || rows == 0 {
		return err
	}
	tx.note(e)
	tx.wakeNode(c.nodeID)
	return nil
}

// errLocked takes the node's host or id.
func errLocked(node string) *schema.Error {
	return schema.NewError(schema.KindInvalidNodeIdentity, "the node's identity is locked: it is in use on two machines").
		WithReason(schema.ReasonNodeLocked).WithNext("gpuaas node reissue-enrollment " + node)
}

// errForeignKey refuses a key that is bound to another node: one machine is a clone
// of the other.
func errForeignKey() *schema.Error {
	return schema.NewError(schema.KindInvalidRequest, "this key belongs to another node: generate a new one").
		WithReason("key_in_use")
}
