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
	// Compare records a checkpoint that the node keeps and the audit trail does not have, or
	// that the checkpoint key did not sign. It reports whether the key certainly did not
	// sign it.
	Compare(ctx context.Context, nodeID, text string) (unsigned bool)
}

// compareCheckpoint compares the checkpoint that a poll carries.
func (a *poller) compareCheckpoint(ctx context.Context, w http.ResponseWriter, p *openPoll) {
	if a.cfg.Checkpoints != nil && p.request.AuditCheckpoint != "" {
		if a.cfg.Checkpoints.Compare(ctx, p.caller.NodeID, p.request.AuditCheckpoint) {
			w.Header().Set(wire.HeaderReplaceCheckpoint, "true")
		}
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
