package adminapi

import (
	"context"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// IdentityLocks locks and unlocks the identities of nodes. Errors are *schema.Error. A
// repeated call changes nothing.
type IdentityLocks interface {
	// Lock locks a node's identity with its audit row: every replica refuses the node's
	// requests within five seconds. It voids the node's enrollment and reissue tokens and
	// bundle references, which could otherwise replace the locked identity. If the
	// identity is locked, its lock stays as it is: the call voids the tokens issued since
	// and audits the reason. KindNotFound; KindInvalidRequest invalid_state for a removed node.
	Lock(ctx context.Context, nodeID, reason string, by audit.Subject) error
	// Unlock lifts the lock of an operator and dismisses an alarm, with an audit row: the
	// same identity is accepted again. KindNotFound; KindInvalidRequest reissue_required
	// if the server locked the identity, because two machines have it.
	Unlock(ctx context.Context, nodeID, reason string, by audit.Subject) error
}

// LockRequest is the body of POST …/lock and POST …/unlock.
type LockRequest struct {
	Reason string `json:"reason"`
}

// lock serves a change of a node's lock and returns the node after it.
func (n nodes) lock(change func(l IdentityLocks, ctx context.Context, nodeID, reason string, by audit.Subject) error) handler {
	return func(c *call) (any, error) {
		req, err := body(c, edge.Decode, func(r *LockRequest) error { return checkReason(r.Reason, true) })
		if err != nil {
			return nil, err
		}
		node, err := n.find(c)
		if err != nil {
			return nil, err
		}
		if err := change(n.Locks, c.Context(), node.ID, req.Reason, c.by); err != nil {
			return nil, err
		}
		return n.Nodes.Node(c.Context(), node.ID)
	}
}
