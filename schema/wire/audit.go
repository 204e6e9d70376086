package wire

import "github.com/gpuaas/gpuaas/schema/audit"

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

// Event kinds of GET /api/v1/admin/events.
const (
	EventOperation = "operation" // data is an OperationSummary
	EventAudit     = "audit"     // data is an audit event
	EventOutage    = "outage"    // data is an ErrorDetail; the stream continues after it
	EventClosed    = "closed"    // data is an ErrorDetail; the subject may no longer read the stream
)
