package store

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// Why an identity is locked.
const (
	cloneOfSerial   = "superseded_serial"
	cloneOfSequence = "sequence_behind"
)

// clone is the evidence that two hold one identity.
type clone struct {
	nodeID      string
	incarnation int64
	reason      string
}

// refuseClone locks the incarnation that the evidence is about: both copies are
// cut until an operator reissues the enrolment.
func refuseClone(c clone, e audit.Event) error {
	e.Action, e.Result, e.Reason = audit.IdentityLocked, audit.Succeeded, c.reason
	return &refusal{err: errLocked(c.nodeID), event: e, clone: &c}
}

// lockIdentity locks the identity, once, and ends the node's open polls. An
// incarnation that was reissued meanwhile stays as it is.
func (u *unit) lockIdentity(ctx context.Context, c clone, e audit.Event) error {
	if _, err := u.lockNode(ctx, c.nodeID); err != nil {
		return err
	}
	rows, err := u.LockIdentity(ctx, c.reason, c.nodeID, c.incarnation)
	if err != nil || rows == 0 {
		return err
	}
	u.note(e)
	return u.later.Notify(ctx, channelNode, c.nodeID)
}

// errLocked names the node by its host where that is at hand, else by its id.
func errLocked(node string) *schema.Error {
	return schema.NewError(schema.KindInvalidNodeIdentity, "the node's identity is locked: two hold it").
		WithReason(schema.ReasonNodeLocked).WithNext("gpuaas node reissue-enrollment " + node)
}

// bindKey binds a key to its node for ever. A key that is another node's is
// KindInvalidRequest: one machine is a copy of the other.
func (u *unit) bindKey(ctx context.Context, spki, nodeID string) error {
	rows, err := u.BindKey(ctx, spki, nodeID)
	if err == nil && rows == 0 {
		return errForeignKey()
	}
	return err
}

func errForeignKey() *schema.Error {
	return schema.NewError(schema.KindInvalidRequest, "this key is another node's: make a fresh one").
		WithReason("key_in_use")
}
