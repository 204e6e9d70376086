package task

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Timings and limits of dispatch.
const (
	// StaleGrace is how long after its expiry the reclaimer leaves a lease alone, so
	// that its holder can still extend it. Until then, a poll gets the task again only
	// if it is not destructive or did not begin.
	StaleGrace = 15 * time.Second
	// ReturnTime is how long after an outage of the node API agents may take to report
	// their tasks: more than wire.PollBackoffMax. Until then no lease counts as stale.
	ReturnTime = 90 * time.Second
	// HeartbeatInterval is the minimum time between two activity heartbeats that
	// the progress of one task causes: a third of HeartbeatTimeout.
	HeartbeatInterval = 30 * time.Second
	// HeartbeatTimeout is the heartbeat timeout of the activity that waits for a
	// task. After a timeout Temporal retries the activity, which finds its own
	// task row.
	HeartbeatTimeout = 90 * time.Second
	// MaxOutputTail is the size of Result.OutputTail in bytes.
	MaxOutputTail = 64 << 10
)

// Expectation is the node state and operation counter that a task was signed
// for. The grant states both as of the dispatch; the node rejects a task whose
// expectation the grant does not meet.
type Expectation struct {
	// NodeState is the node's state, "" for any.
	NodeState lifecycle.NodeState `json:"node_state,omitempty"`
	// OpSeq is the node's operation counter: the operation that requested the task
	// must still hold the node.
	OpSeq int64 `json:"op_seq"`
}

// Grant is the signed body of a lease: DSSE payload of type
// trust.LeasePayloadType, by a key that a trust.LeaseKey delegates. It binds one
// dispatch to one poll: the nonce is the caller's, so a replayed response is
// detected, and ServerTime is a time that the node can trust if its clock is wrong.
type Grant struct {
	V              int       `json:"v"` // 1
	Env            string    `json:"env"`
	NodeID         string    `json:"node_id"`
	Incarnation    int64     `json:"incarnation"`
	Nonce          string    `json:"nonce"`
	ServerTime     time.Time `json:"server_time"`
	TaskID         string    `json:"task_id"`
	EnvelopeSHA256 string    `json:"envelope_sha256"` // hex, of the task's signed body
	LeaseEpoch     int64     `json:"lease_epoch"`
	LeaseUntil     time.Time `json:"lease_until"`
	// NodeState and OpSeq are the node's at the dispatch; see Expectation.
	NodeState lifecycle.NodeState `json:"node_state"`
	OpSeq     int64               `json:"op_seq"`
	// SetVersion and SetHash are those of the newest verifier set.
	SetVersion int64  `json:"set_version"`
	SetHash    string `json:"set_hash"`
}

// Floors are the counters of a node that must not go back.
type Floors struct {
	// TaskSeq is the highest sequence of an accepted task: the node accepts no new
	// task at or below it.
	TaskSeq int64 `json:"task_seq,omitempty"`
	// IdentitySequence is the sequence of the incarnation's newest stored identity.
	IdentitySequence int64 `json:"identity_sequence,omitempty"`
}
