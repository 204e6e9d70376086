package wire

import (
	"crypto/ed25519"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// AuditPage is the response to GET /api/v1/admin/audit: events of all streams, newest
// first.
type AuditPage struct {
	Events        []audit.Row `json:"events"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

// AuditStreamList is the response to GET /api/v1/admin/audit/streams.
type AuditStreamList struct {
	Streams       []string `json:"streams"`
	NextPageToken string   `json:"next_page_token,omitempty"`
}

// AuditStreamPage is the response to GET /api/v1/admin/audit/streams/{stream}?after=SEQ: a
// stream in order of seq, for checking its hash chain.
type AuditStreamPage struct {
	Events []audit.Event `json:"events"`
	// More is true when a further page exists after the last seq.
	More bool `json:"more"`
	// HeadSeq and HeadHash are the head of the stream, as read before the events: the
	// event with this seq must exist and have this hash.
	HeadSeq  int64  `json:"head_seq"`
	HeadHash string `json:"head_hash"`
}

// AuditCheckpoint is a signed checkpoint of the audit trail with its body.
type AuditCheckpoint struct {
	Body   []byte `json:"body"`   // JSON of audit.CheckpointBody, in base64
	Signed string `json:"signed"` // the text of the signed checkpoint
}

// AuditCheckpointPage is the response to GET /api/v1/admin/audit/checkpoints?after=NUMBER:
// checkpoints in order of their number.
type AuditCheckpointPage struct {
	Checkpoints []AuditCheckpoint `json:"checkpoints"`
	// More is true when a further page exists after the last number.
	More bool `json:"more"`
	// Keys are the public keys of the checkpoint key in Vault, in base64 by key ID.
	Keys map[string]ed25519.PublicKey `json:"keys"`
}

// AuditGap is the body of POST /api/v1/admin/audit/accept-gap, and its response.
type AuditGap struct {
	Reason string `json:"reason"`
	// Checkpoints is how many missing checkpoints were accepted, in the response.
	Checkpoints int64 `json:"checkpoints,omitempty"`
}

// Event kinds of GET /api/v1/admin/events.
const (
	EventOperation = "operation" // data is an OperationSummary
	EventAudit     = "audit"     // data is an audit event
	EventOutage    = "outage"    // data is an ErrorDetail; the stream continues after it
	EventClosed    = "closed"    // data is an ErrorDetail; the subject may no longer read the stream
)
