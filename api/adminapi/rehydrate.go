package adminapi

import (
	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// rehydrate accepts the end of the node's abandoned operations. A repeated request
// finds none and changes nothing, with or without an idempotency key.
func (n nodes) rehydrate(c *call) (any, error) {
	req, err := body(c, edge.DecodeOptional, func(r *wire.RehydrateRequest) error { return checkReason(r.Reason, false) })
	if err != nil {
		return nil, err
	}
	node, err := n.find(c)
	if err != nil {
		return nil, err
	}
	return n.Rehydrator.Rehydrate(c.Context(), node.ID, req.Reason, c.by)
}
