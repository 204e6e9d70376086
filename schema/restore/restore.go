// Package restore describes the time after a restore of the database to an earlier time.
package restore

import "time"

// Limits of a restore mode.
const (
	// DefaultLength is how long a restore mode lasts by default: the time in which the
	// agents of a healthy fleet poll several times.
	DefaultLength = time.Hour
	// MaxLength is how long a restore mode can last.
	MaxLength = 24 * time.Hour
)

// Mode is the period after a restore of the database in which nodes that are
// ahead of the database are accepted, and what was found since its start.
type Mode struct {
	// Database is the name of the database, and OtherSessions counts the sessions of other
	// clients in it.
	Database      string `json:"database"`
	OtherSessions int64  `json:"other_sessions"`
	// On is false before the first start, after a stop and after EndsAt.
	On bool `json:"on"`
	// Epoch counts the starts; 0 means that there was none.
	Epoch     int64     `json:"epoch"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndsAt    time.Time `json:"ends_at,omitzero"`
	Actor     string    `json:"actor,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	// LastAuditAt is the time of the newest audit event that the database had at the
	// start. The events between it and StartedAt are missing: AuditGapSeconds.
	LastAuditAt     time.Time `json:"last_audit_at,omitzero"`
	AuditGapSeconds int64     `json:"audit_gap_seconds"`
	// NodesAhead are the nodes whose counters were ahead of the database, and TasksMissing
	// the tasks that they ran and the database does not have.
	NodesAhead   int64 `json:"nodes_ahead"`
	TasksMissing int64 `json:"tasks_missing"`
	// IdentitiesAdopted are the certificates that the database did not have, OperationsEnded
	// the abandoned operations that were recorded as failed, and TokensVoided the enrollment
	// tokens that were open.
	IdentitiesAdopted int64 `json:"identities_adopted"`
	OperationsEnded   int64 `json:"operations_ended"`
	TokensVoided      int64 `json:"tokens_voided"`
	// UnknownNodes counts the rejections of certificates of nodes that the database does not
	// have, and LostSets the nodes with a verifier set that the database does not have.
	UnknownNodes int64 `json:"unknown_nodes"`
	LostSets     int64 `json:"lost_sets"`
	// Absent are hosts of enrolled nodes that sent no heartbeat since the start, at most 1000.
	Absent []string `json:"absent"`
}
