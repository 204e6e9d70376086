package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Audit results.
const (
	AuditAccepted  = "accepted"
	AuditSucceeded = "succeeded"
	AuditRefused   = "refused"
	AuditFailed    = "failed"
	AuditCancelled = "cancelled"
	AuditParked    = "parked"
)

// Audit actions. Those of operations are AuditAction(action).
const (
	AuditTokenIssued     = "nodes.token_issued"
	AuditTokenClaimed    = "nodes.token_claimed"
	AuditTokenRefused    = "nodes.token_refused"
	AuditIdentityIssued  = "nodes.certificate_issued"
	AuditIdentityActive  = "nodes.certificate_promoted"
	AuditIdentityRefused = "nodes.identity_refused"
	AuditRecoveryClaimed = "nodes.recovery_claimed"
	AuditRecoveryRefused = "nodes.recovery_refused"
	AuditRenewalClaimed  = "nodes.renewal_claimed"
	AuditIdentityLocked  = "nodes.identity_locked"
	AuditFetchIssued     = "nodes.fetch_reference_issued"
	AuditFetchUsed       = "nodes.fetch_reference_used"
	AuditTaskCreated     = "tasks.created"
	AuditTaskDispatched  = "tasks.dispatched"
	AuditTaskFinished    = "tasks.finished"
	AuditTaskLate        = "tasks.late_result"
	AuditTaskForeign     = "tasks.foreign_result" // of another body than the one that was signed
	AuditTaskRequeued    = "tasks.requeued"
	AuditTaskLost        = "tasks.lost"
	AuditTaskBack        = "tasks.back"
	AuditTaskNudged      = "tasks.delivery_nudged"
	AuditTaskResume      = "tasks.resume"
	AuditTaskCancel      = "tasks.cancel"
	AuditSetPublished    = "trust.verifier_set_published"
	AuditDecision        = "operations.resolve"

	AuditStateChanged     = "nodes.state_changed"
	AuditInstanceChanged  = "instances.state_changed"
	AuditResourcePlanned  = "resources.planned"
	AuditResourceCreated  = "resources.created"
	AuditResourceReleased = "resources.released"
)

// AuditAction is the audit action of a lifecycle action, for example
// nodes.drain or nodes.reissue_enrollment.
func AuditAction(a Action) string {
	if a == ActionReissueEnrollment {
		return "nodes.reissue_enrollment"
	}
	return "nodes." + string(a)
}

// SystemStream is the audit stream of what concerns no known node.
const SystemStream = "system"

// AuditEvent is one row of the audit trail. Rows form one hash chain per
// Stream (the node id, or "system"), so that writes for different nodes never
// wait for each other.
type AuditEvent struct {
	Stream        string            `json:"stream"`
	Seq           int64             `json:"seq"` // from 1, without gaps
	At            time.Time         `json:"at"`  // microseconds, UTC
	Actor         string            `json:"actor"`
	Action        string            `json:"action"`
	Target        string            `json:"target"`
	Result        string            `json:"result"`
	Reason        string            `json:"reason,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	OperationID   string            `json:"operation_id,omitempty"`
	Detail        map[string]string `json:"detail,omitempty"`
	PrevHash      string            `json:"prev_hash"` // hex; empty for seq 1
	Hash          string            `json:"hash"`      // hex
}

// auditDomain separates these hashes from every other use of SHA-256.
const auditDomain = "gpuaas audit v1\n"

// ComputeHash returns the hex SHA-256 over the event, its predecessor's hash
// included, its own Hash left out.
func (e AuditEvent) ComputeHash() string {
	e.Hash = ""
	e.At = e.At.UTC().Truncate(time.Microsecond)
	body, _ := json.Marshal(e) //nolint:errchkjson // strings, ints, a time and a string map always encode
	sum := sha256.Sum256(append([]byte(auditDomain), body...))
	return hex.EncodeToString(sum[:])
}

// VerifyChain checks the events of one stream in order of Seq, starting at
// prev (the last event already verified; nil at the start of a stream). It
// returns the first fault found, or nil.
func VerifyChain(prev *AuditEvent, events []AuditEvent) error {
	want, prevHash := int64(1), ""
	if prev != nil {
		want, prevHash = prev.Seq+1, prev.Hash
	}
	for _, e := range events {
		switch {
		case e.Seq != want:
			return fmt.Errorf("audit stream %s: row %d is missing (found %d)", e.Stream, want, e.Seq)
		case e.PrevHash != prevHash:
			return fmt.Errorf("audit stream %s: row %d does not continue row %d", e.Stream, e.Seq, e.Seq-1)
		case e.ComputeHash() != e.Hash:
			return fmt.Errorf("audit stream %s: row %d was changed after it was written", e.Stream, e.Seq)
		}
		want, prevHash = want+1, e.Hash
	}
	return nil
}
