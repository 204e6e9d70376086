package nodeapi

import (
	"context"
	"net/http"

	"github.com/gpuaas/gpuaas/schema/wire"
)

// Checkpoints serves the newest checkpoint of the audit trail and compares those that
// nodes keep. Its methods do not fail a poll.
type Checkpoints interface {
	// Newest returns the newest checkpoint as text from a cache, "" if there is none.
	Newest() string
	// Compare records a checkpoint that the node keeps and the audit trail does not have.
	// It ignores a text that no checkpoint key signed.
	Compare(ctx context.Context, nodeID, text string)
}

// compareCheckpoint compares the checkpoint that a poll carries.
func (a *poller) compareCheckpoint(ctx context.Context, p *openPoll) {
	if a.cfg.Checkpoints != nil && p.request.AuditCheckpoint != "" {
		a.cfg.Checkpoints.Compare(ctx, p.caller.NodeID, p.request.AuditCheckpoint)
		p.request.AuditCheckpoint = "" // an open poll keeps only what it needs
	}
}

// setCheckpointHeader puts the newest checkpoint into the response, if there is one.
func (a *poller) setCheckpointHeader(w http.ResponseWriter) {
	if a.cfg.Checkpoints == nil {
		return
	}
	if newest := a.cfg.Checkpoints.Newest(); newest != "" {
		w.Header().Set(wire.HeaderAuditCheckpoint, newest)
	}
}
