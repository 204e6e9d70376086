package adminapi

import (
	"github.com/gpuaas/gpuaas/api/edge"
)

// RehydrateRequest is the body of POST …/rehydrate. An empty body is allowed.
type RehydrateRequest struct {
	Reason string `json:"reason,omitempty"`
}

// rehydrate accepts the end of the node's abandoned operations. A repeated request
// finds none and changes nothing, with or without an idempotency key.
func (n nodes) rehydrate(c *call) (any, error) {
	req, err := body(c, edge.DecodeOptional, func(r *RehydrateRequest) error { return checkReason(r.Reason, false) })
	if err != nil {
		return nil, err
	}
	node, err := n.find(c)
	if err != nil {
		return nil, err
	}
	return n.Rehydrator.Rehydrate(c.Context(), node.ID, req.Reason, c.by)
}
