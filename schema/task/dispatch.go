package task

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Timings of dispatch, from design/architecture.md §7 and trust.md C6.
const (
	// StaleGrace is how long after its end a lease may still be renewed before
	// the reclaimer looks at it.
	StaleGrace = 15 * time.Second
	// HeartbeatInterval is how often at most a task's progress becomes a heartbeat of
	// its activity, a third of HeartbeatTimeout.
	HeartbeatInterval = 30 * time.Second
	// HeartbeatTimeout is the heartbeat timeout of the activity that waits for a
	// task. A silent one is tried again, which finds its own row.
	HeartbeatTimeout = 90 * time.Second
	// MaxOutputTail is how much of a task's output is kept for the operator: the
	// last bytes of it.
	MaxOutputTail = 64 << 10
)

// ReasonLost is the reason of an operation that is parked because a node's
// task ran out of its lease and must not be run again unasked.
const ReasonLost = "task_lost"

// Expectation is what must hold when a task is handed over. The grant repeats it
// as the control plane sees it then; a node refuses a task whose expectation the
// grant does not meet.
type Expectation struct {
	// NodeState is the node's state, "" for any.
	NodeState lifecycle.NodeState `json:"node_state,omitempty"`
	// OpSeq is the node's operation counter: the operation that asks must still
	// be the one that owns the node.
	OpSeq int64 `json:"op_seq"`
}

// Grant is the signed body of a lease: DSSE payload of type
// LeasePayloadType, by a key that a LeaseKey delegates. It binds one offer to
// one poll: the nonce is the caller's own, so an old answer is no answer, and
// ServerTime is a time the node can trust without a clock.
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
	// NodeState and OpSeq are the node's at the hand-over; see Expectation.
	NodeState lifecycle.NodeState `json:"node_state"`
	OpSeq     int64               `json:"op_seq"`
	// SetVersion and SetHash are those of the newest verifier set.
	SetVersion int64  `json:"set_version"`
	SetHash    string `json:"set_hash"`
}
