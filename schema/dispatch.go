package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Payload types of the signed documents beside the task itself. Each is part of
// what is signed, so that none passes for another.
const (
	LeasePayloadType       = "application/vnd.gpuaas.task-lease.v1+json"
	LeaseKeyPayloadType    = "application/vnd.gpuaas.lease-key.v1+json"
	VerifierSetPayloadType = "application/vnd.gpuaas.verifier-set.v1+json"
)

// Timings of dispatch, from design/architecture.md §7 and trust.md C6.
const (
	// StaleGrace is how long after its end a lease may still be renewed before
	// the reclaimer looks at it.
	StaleGrace = 15 * time.Second
	// BeatEvery is how often at most a task's progress becomes a heartbeat of
	// its activity, a third of TaskBeatTimeout.
	BeatEvery = 30 * time.Second
	// TaskBeatTimeout is the heartbeat timeout of the activity that waits for a
	// task. A silent one is tried again, which finds its own row.
	TaskBeatTimeout = 90 * time.Second
	// MaxOutputTail is how much of a task's output is kept for the operator: the
	// last bytes of it.
	MaxOutputTail = 64 << 10
	// LeaseKeyLife is how long an API replica's delegated key is good.
	LeaseKeyLife = 24 * time.Hour
	// ReclaimEvery is the interval of the reclaimer's schedule.
	ReclaimEvery = 30 * time.Second
	// ReclaimRunTimeout ends a run of the reclaimer that hangs, so that it does
	// not keep the next ones from starting.
	ReclaimRunTimeout = 3 * time.Minute
)

// ReasonTaskLost is the reason of an operation that is parked because a node's
// task ran out of its lease and must not be run again unasked.
const ReasonTaskLost = "task_lost"

// TaskExpect is what must hold when a task is handed over. The grant repeats it
// as the control plane sees it then; a node refuses a task whose expectation the
// grant does not meet.
type TaskExpect struct {
	// NodeState is the node's state, "" for any.
	NodeState NodeState `json:"node_state,omitempty"`
	// OpSeq is the node's operation counter: the operation that asks must still
	// be the one that owns the node.
	OpSeq int64 `json:"op_seq"`
}

// TaskGrant is the signed body of a lease: DSSE payload of type
// LeasePayloadType, by a key that a LeaseKey delegates. It binds one offer to
// one poll: the nonce is the caller's own, so an old answer is no answer, and
// ServerTime is a time the node can trust without a clock.
type TaskGrant struct {
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
	// NodeState and OpSeq are the node's at the hand-over; see TaskExpect.
	NodeState NodeState `json:"node_state"`
	OpSeq     int64     `json:"op_seq"`
	// SetVersion and SetHash are those of the newest verifier set.
	SetVersion int64  `json:"set_version"`
	SetHash    string `json:"set_hash"`
}

// EnvelopeDigest is the hex SHA-256 of a DSSE envelope's signed body. KindInternal
// for what is no envelope.
func EnvelopeDigest(envelope []byte) (string, error) {
	var e struct {
		Payload []byte `json:"payload"` // base64
	}
	if err := json.Unmarshal(envelope, &e); err != nil {
		return "", Wrap(KindInternal, err, "a stored envelope cannot be read")
	}
	sum := sha256.Sum256(e.Payload)
	return hex.EncodeToString(sum[:]), nil
}

// LeaseKey is the signed body of a delegation: DSSE payload of type
// LeaseKeyPayloadType, by an active or grace key of the verifier set. It lets an
// API replica sign grants, and nothing else, with a key of its own, so that no
// hand-over waits for Vault.
type LeaseKey struct {
	V         int       `json:"v"` // 1
	Env       string    `json:"env"`
	KeyID     string    `json:"key_id"`
	Public    string    `json:"public"` // standard base64 of the 32 key bytes
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
}

// VerifierSetDoc is the signed body of a verifier set: DSSE payload of type
// VerifierSetPayloadType. Version N+1 is signed by a root key and by the active
// key of version N, and names the hash of N; a node takes only the next version,
// or a root-signed one of a higher epoch (the way out of a mistake).
type VerifierSetDoc struct {
	V         int              `json:"v"` // 1
	Env       string           `json:"env"`
	Version   int64            `json:"version"` // from 1
	PrevHash  string           `json:"prev_hash"`
	Epoch     int64            `json:"epoch"`
	Keys      []VerifierSetKey `json:"keys"`
	IssuedAt  time.Time        `json:"issued_at"`
	ExpiresAt time.Time        `json:"expires_at"`
}

// VerifierSetKey is one key of a VerifierSetDoc.
type VerifierSetKey struct {
	KeyID  string   `json:"kid"`
	Public string   `json:"pub"` // standard base64 of the 32 key bytes
	State  KeyState `json:"state"`
	// SignFrom and AcceptUntil bound the key's use; zero leaves it open.
	SignFrom    time.Time `json:"sign_from,omitzero"`
	AcceptUntil time.Time `json:"accept_until,omitzero"`
}

// StoredSet is a verifier set as it is kept and handed out.
type StoredSet struct {
	Version int64
	Epoch   int64
	// Hash is the hex SHA-256 of the signed body.
	Hash     string
	PrevHash string
	// Document is the DSSE envelope.
	Document json.RawMessage
}

// VerifierSets is the body of a 200 of GET verifier-sets: the DSSE envelopes
// after the version that was asked for, oldest first.
type VerifierSets struct {
	Sets []json.RawMessage `json:"sets"`
}

// TaskAsk is what a poll says about the node that asks for work.
type TaskAsk struct {
	// Have are the tasks that the agent's journal holds as accepted or
	// unreported.
	Have []string
	// Holder names the agent's process: its boot id and start.
	Holder string
	// Nonce is random and new for each poll.
	Nonce string
	// Number counts the polls of this process, from 1; 0 when it does not count.
	// Who sends a poll has dealt with the answers to all before it.
	Number int64
}

// TaskBeat is what a task's activity is told about its progress. It becomes the
// heartbeat's details in the Web UI.
type TaskBeat struct {
	Status  TaskStatus `json:"status"`
	Message string     `json:"message,omitempty"`
	Epoch   int64      `json:"lease_epoch"`
}

// Progressed is what a progress call came to.
type Progressed struct {
	Answer ProgressAnswer
	// Owner is set when a heartbeat is due.
	Owner *TaskOwner
}

// BeatAnswer is what an operator did to the activity meanwhile.
type BeatAnswer struct {
	// Cancel: the activity was cancelled or its run is gone. Paused: it was
	// paused in the Web UI or by the temporal command.
	Cancel bool
	Paused bool
}

// ReclaimResult is what the reclaimer decided about one task.
type ReclaimResult string

// The reclaimer's decisions.
const (
	// ReclaimRequeued: a read or idempotent task is offered again.
	ReclaimRequeued ReclaimResult = "requeued"
	// ReclaimLost: a destructive one is given up; its operation parks.
	ReclaimLost ReclaimResult = "lost"
	// ReclaimVoided: its operation is over.
	ReclaimVoided ReclaimResult = "voided"
	// ReclaimNudged: a result is stored and not delivered for too long.
	ReclaimNudged ReclaimResult = "nudged"
)

// ReclaimResults returns the decisions, for metrics.
func ReclaimResults() []ReclaimResult {
	return []ReclaimResult{ReclaimRequeued, ReclaimLost, ReclaimVoided, ReclaimNudged}
}

// ReclaimRequest asks for one batch of the reclaimer.
type ReclaimRequest struct {
	// After is the last task of the batch before, "" for the first.
	After string `json:"after,omitempty"`
	Limit int    `json:"limit"`
}

// Reclaimed is one decision.
type Reclaimed struct {
	TaskID string        `json:"task_id"`
	NodeID string        `json:"node_id"`
	Host   string        `json:"host"`
	Type   TaskType      `json:"type"`
	Result ReclaimResult `json:"result"`
}

// ReclaimReport is what a batch came to.
type ReclaimReport struct {
	Decisions []Reclaimed `json:"decisions,omitempty"`
	// Next is the After of the next batch, "" when there is none.
	Next string `json:"next,omitempty"`
}

// WorkflowReclaim is the workflow type of the reclaimer, ScheduleReclaim the id
// of its schedule and VerbReclaim the verb of its workflow ID.
const (
	WorkflowReclaim = "ReclaimStaleDispatch"
	ScheduleReclaim = "reclaim-stale-dispatch"
	VerbReclaim     = "reclaim-stale-dispatch"
)

// TaskView is a task as operators see it, the body of GET /tasks/{task_id} and
// an element of GET /tasks.
type TaskView struct {
	TaskID        string     `json:"task_id"`
	NodeID        string     `json:"node_id"`
	Host          string     `json:"host"`
	Type          TaskType   `json:"type"`
	Effect        Effect     `json:"effect"`
	Status        TaskStatus `json:"status"`
	Step          string     `json:"step"`
	Seq           int64      `json:"seq"`
	Incarnation   int64      `json:"incarnation"`
	OperationID   string     `json:"operation_id"`
	WorkflowID    string     `json:"workflow_id"`
	RunID         string     `json:"run_id"`
	CorrelationID string     `json:"correlation_id,omitempty"`
	// Attempts is how often it was handed over: the lease's epoch.
	Attempts int64 `json:"attempts"`
	// Holder and LeaseUntil are of the newest lease; LeaseUntil is null before
	// the first.
	Holder       string     `json:"holder,omitempty"`
	LeaseUntil   *time.Time `json:"lease_until"`
	Progress     string     `json:"progress,omitempty"`
	Paused       bool       `json:"paused,omitempty"`
	Deadline     *time.Time `json:"deadline"`
	CreatedAt    time.Time  `json:"created_at"`
	DispatchedAt *time.Time `json:"dispatched_at"`
	FinishedAt   *time.Time `json:"finished_at"`
	// CancelRequested is the reason of an operator's cancel that the agent has
	// not answered yet.
	CancelRequested string      `json:"cancel_requested,omitempty"`
	Result          *TaskResult `json:"result,omitempty"`
	// ResultProof proves that the node reported the result; not in lists.
	ResultProof *ResultProof `json:"result_proof,omitempty"`
}

// TaskList is the body of GET /tasks.
type TaskList struct {
	Tasks []TaskView `json:"tasks"`
}

// TaskDecision is the body of POST /tasks/{task_id}/resume and …/cancel.
type TaskDecision struct {
	Reason string `json:"reason"`
}
