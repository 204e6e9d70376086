package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Audit results.
const (
	Accepted  = "accepted"
	Succeeded = "succeeded"
	Refused   = "refused"
	Failed    = "failed"
	Canceled  = "cancelled"
	Parked    = "parked"
)

// Audit actions. Those of operations are ActionName(action).
const (
	TokenIssued     = "nodes.token_issued"
	TokenClaimed    = "nodes.token_claimed"
	TokenRefused    = "nodes.token_refused"
	IdentityIssued  = "nodes.certificate_issued"
	IdentityActive  = "nodes.certificate_promoted"
	IdentityRefused = "nodes.identity_refused"
	RecoveryClaimed = "nodes.recovery_claimed"
	RecoveryRefused = "nodes.recovery_refused"
	RenewalClaimed  = "nodes.renewal_claimed"
	IdentityLocked  = "nodes.identity_locked" // by the server
	IdentityAlarm   = "nodes.identity_alarm"
	FetchIssued     = "nodes.fetch_reference_issued"
	FetchUsed       = "nodes.fetch_reference_used"
	TaskCreated     = "tasks.created"
	TaskDispatched  = "tasks.dispatched"
	TaskFinished    = "tasks.finished"
	TaskLate        = "tasks.late_result"
	TaskMismatched  = "tasks.mismatched_result" // for another body than the signed one
	TaskRequeued    = "tasks.requeued"
	TaskLost        = "tasks.lost"
	TaskReturned    = "tasks.returned"
	TaskRedelivered = "tasks.redelivered"
	TaskResume      = "tasks.resume"
	TaskCancel      = "tasks.cancel"
	SetPublished    = "trust.verifier_set_published"
	RotationStarted = "trust.rotation_started"
	RotationChanged = "trust.rotation_changed" // a phase began or its set was published
	RotationDecided = "trust.rotation_decided"
	RotationEnded   = "trust.rotation_ended"
	Decision        = "operations.resolve"

	CheckpointMissing = "audit.checkpoint_missing" // a node keeps one that the database lost
	GapAccepted       = "audit.gap_accepted"
	// Archived is a part of the trail that was written to a file of the archive.
	Archived = "audit.archived"
	// CheckpointUnverified is a checkpoint on a node that the checkpoint key did not sign.
	CheckpointUnverified = "audit.checkpoint_unverified"

	NodeSet          = "nodes.set"
	FloorsRaised     = "nodes.floors_raised"
	IdentityAdopted  = "nodes.identity_adopted"
	RestoreStarted   = "restore_mode.start"
	RestoreEnded     = "restore_mode.stop"
	NodeLock         = "nodes.lock"
	NodeUnlock       = "nodes.unlock"
	NodeRehydrated   = "nodes.rehydrate"
	SKUAdded         = "skus.add"
	SKUDeactivated   = "skus.deactivate"
	TemplateSet      = "templates.set"
	TemplateDeleted  = "templates.delete"
	PolicySet        = "recovery.policy_set" // the policy of health recovery
	BreakerClosed    = "recovery.breaker_closed"
	BulkStopped      = "bulk.stop" // a bulk run of the console
	InstanceChanged  = "instances.state_changed"
	ResourcePlanned  = "resources.planned"
	ResourceCreated  = "resources.created"
	ResourceReleased = "resources.released"

	// QuotaExceeded is recorded once for each operation that parked because a provider's quota is used
	// up. Its name is the reason of the park.
	QuotaExceeded = machine.ReasonQuota
)

// ActionName is the audit action of a lifecycle action, for example
// nodes.drain or nodes.reissue_enrollment.
func ActionName(a lifecycle.Action) string {
	if a == lifecycle.ActionReissueEnrollment {
		return "nodes.reissue_enrollment"
	}
	return "nodes." + string(a)
}

// Results returns every audit result.
func Results() []string { return []string{Accepted, Succeeded, Refused, Failed, Canceled, Parked} }

// SystemStream is the audit stream of what concerns no known node.
const SystemStream = "system"

// Event is one row of the audit trail. Rows form one hash chain per
// Stream (the node id, or "system"), so that writes for different nodes never
// wait for each other.
type Event struct {
	Stream        string            `json:"stream"`
	Seq           int64             `json:"seq"` // from 1, without gaps
	At            time.Time         `json:"at"`  // microseconds, UTC
	Actor         string            `json:"actor"`
	Via           string            `json:"via,omitempty"` // "api", "temporal", or empty for our own services
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

// Row is an event of a list, with the host name of the node whose stream it is in. The
// hash does not cover the host name.
type Row struct {
	Event

	Host string `json:"host,omitempty"`
}

// domain is the first field of every preimage: it separates these hashes from
// other uses of SHA-256.
const domain = "gpuaas audit v1"

// ComputeHash returns the event's hash as the package comment specifies it. It
// ignores Hash.
func (e Event) ComputeHash() string {
	var detail []byte
	for _, key := range slices.Sorted(maps.Keys(e.Detail)) {
		detail = appendField(appendField(detail, key), e.Detail[key])
	}
	var preimage []byte
	for _, field := range []string{domain, e.Stream, strconv.FormatInt(e.Seq, 10), strconv.FormatInt(e.At.UnixMicro(), 10),
		e.Actor, e.Via, e.Action, e.Target, e.Result, e.Reason, e.CorrelationID, e.OperationID, string(detail), e.PrevHash} {
		preimage = appendField(preimage, field)
	}
	sum := sha256.Sum256(preimage)
	return hex.EncodeToString(sum[:])
}

// appendField appends a field's length, a colon and the field.
func appendField(to []byte, field string) []byte {
	to = strconv.AppendInt(to, int64(len(field)), 10)
	return append(append(to, ':'), field...)
}

// VerifyChain checks the events of one stream in order of Seq. prev is the last
// event already verified, nil at the start of a stream. It returns the first
// fault, or nil.
func VerifyChain(prev *Event, events []Event) error {
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
