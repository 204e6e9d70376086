package schema

import (
	"encoding/json"
	"slices"
	"time"
)

// TaskStatus is the status of a node task.
type TaskStatus string

// The task statuses. Succeeded, failed and cancelled are terminal. A lost task is
// given up, and comes back when its node is heard of again or an operator says so.
const (
	TaskPending    TaskStatus = "pending"
	TaskDispatched TaskStatus = "dispatched"
	TaskRunning    TaskStatus = "running"
	TaskSucceeded  TaskStatus = "succeeded"
	TaskFailed     TaskStatus = "failed"
	TaskCancelled  TaskStatus = "cancelled"
	TaskLost       TaskStatus = "lost"
)

// Terminal reports whether no further change of the status is possible.
func (s TaskStatus) Terminal() bool {
	return slices.Contains([]TaskStatus{TaskSucceeded, TaskFailed, TaskCancelled}, s)
}

// Effect says what running a task twice would do. It decides what may be
// offered again without a person's word.
type Effect string

// The effects.
const (
	EffectRead        Effect = "read"
	EffectIdempotent  Effect = "idempotent"
	EffectDestructive Effect = "destructive"
)

// TaskType names what a node can be asked to do. The list is closed: an agent
// refuses every other type.
type TaskType string

// The task types of this version.
const (
	TaskFactsCollect     TaskType = "facts.collect"
	TaskNodeProbe        TaskType = "node.probe"
	TaskWorkloadCordon   TaskType = "workload.cordon"
	TaskWorkloadUncordon TaskType = "workload.uncordon"
	TaskWorkloadDrain    TaskType = "workload.drain"
	TaskUpdateTrust      TaskType = "agent.update_trust"
	TaskWipeIdentity     TaskType = "agent.wipe_identity"
)

// TaskTypeRow is one row of the table of task types.
type TaskTypeRow struct {
	Type   TaskType
	Effect Effect
	// MaxRuntime bounds one execution on the node unless the params give a
	// longer deadline (workload.drain).
	MaxRuntime time.Duration
	Does       string
}

// TaskTypes returns the table of task types.
func TaskTypes() []TaskTypeRow {
	return []TaskTypeRow{
		{TaskFactsCollect, EffectRead, 30 * time.Second, "OS, kernel, CPUs, memory, disks, NICs, GPUs"},
		{TaskNodeProbe, EffectRead, 60 * time.Second, "disk, memory, GPUs, clock offset"},
		{TaskWorkloadCordon, EffectIdempotent, 30 * time.Second, "take no new workload"},
		{TaskWorkloadUncordon, EffectIdempotent, 30 * time.Second, "take workloads again"},
		{TaskWorkloadDrain, EffectDestructive, 10 * time.Minute, "stop the workloads before a deadline, report what blocked"},
		{TaskUpdateTrust, EffectIdempotent, 60 * time.Second, "take the newest verifier sets and CA bundles"},
		{TaskWipeIdentity, EffectDestructive, 30 * time.Second, "give up the node's identity for good, and stop"},
	}
}

// Row returns the type's row; ok is false for a type outside the closed list.
func (t TaskType) Row() (row TaskTypeRow, ok bool) {
	for _, r := range TaskTypes() {
		if r.Type == t {
			return r, true
		}
	}
	return TaskTypeRow{}, false
}

// Limits and timings of the node API and of tasks, from design/architecture.md
// §7 and interfaces.md §3.
const (
	MaxBodyBytes     = 64 << 10         // request bodies of the node API
	MaxResultBytes   = 1 << 20          // task results
	MaxPollTimeout   = 60 * time.Second // tasks/wait?timeout=
	TaskLease        = 60 * time.Second // extended by progress
	HeartbeatEvery   = 30 * time.Second
	SilentAfter      = 5 * time.Minute // a node without heartbeats is offline
	ResultBackoffMin = 500 * time.Millisecond
	ResultBackoffMax = 30 * time.Second
	PollBackoffMax   = 60 * time.Second
)

// TaskPayloadType is the DSSE payload type of a signed task. It is part of what
// is signed, so a signature over one kind of document never passes for another.
const TaskPayloadType = "application/vnd.gpuaas.task.v1+json"

// TaskPayload is the signed body of a task: DSSE payload of type
// TaskPayloadType. A node verifies the bytes, parses them once and strictly
// (DecodeStrict), and accepts the task only when env, node and incarnation are
// its own and now lies in [NotBefore, ExpiresAt]. Params hold no secret.
type TaskPayload struct {
	V            int             `json:"v"` // 1
	Env          string          `json:"env"`
	TaskID       string          `json:"task_id"`
	NodeID       string          `json:"node_id"`
	Incarnation  int64           `json:"incarnation"`
	Type         TaskType        `json:"type"`
	Effect       Effect          `json:"effect"`
	TypeVersion  int             `json:"type_version"` // 1
	Params       json.RawMessage `json:"params"`
	ParamsSHA256 string          `json:"params_sha256"` // hex, of Params as they stand here
	Seq          int64           `json:"seq"`           // rising per node
	Attempt      int64           `json:"attempt"`       // of the step within its operation, from 1
	IssuedAt     time.Time       `json:"issued_at"`
	NotBefore    time.Time       `json:"not_before"`
	ExpiresAt    time.Time       `json:"expires_at"`
	MaxRuntime   int64           `json:"max_runtime_seconds"`
	Expect       TaskExpect      `json:"expect"`
	// MinSetVersion is the oldest verifier set that may judge this task.
	MinSetVersion int64  `json:"min_set_version"`
	OperationID   string `json:"operation_id"`
	WorkflowID    string `json:"workflow_id"`
	CorrelationID string `json:"correlation_id"`
}

// TaskSpec is what a workflow asks a node to do.
type TaskSpec struct {
	OperationID string          `json:"operation_id"`
	OpSeq       int64           `json:"op_seq"`
	NodeID      string          `json:"node_id"`
	Step        string          `json:"step"` // unique within the operation
	Type        TaskType        `json:"type"`
	Params      json.RawMessage `json:"params,omitempty"`
	Deadline    time.Time       `json:"deadline"` // after it the envelope is void
	// Attempt counts the tries of the step within the operation, from 1; 0
	// means 1. Expect.OpSeq is filled in from OpSeq.
	Attempt       int64      `json:"attempt,omitempty"`
	Expect        TaskExpect `json:"expect,omitzero"`
	CorrelationID string     `json:"correlation_id"`
}

// TaskRow is a stored task as the dispatching activity needs it.
type TaskRow struct {
	TaskID      string
	NodeID      string
	Incarnation int64
	Type        TaskType
	Effect      Effect
	Params      json.RawMessage
	Seq         int64
	Status      TaskStatus
	Signed      bool // the envelope is attached: the task can be offered
	CreatedAt   time.Time
	// Stored is false for a task that is to be signed and stored yet.
	Stored bool
	Result *TaskResult // set when Status is terminal or lost
}

// TaskOwner is the activity that waits for a task: where the result goes.
type TaskOwner struct {
	WorkflowID string
	RunID      string
	ActivityID string
}

// Lease says until when the node holds a task. Epoch rises with every hand-over;
// a result with another epoch is answered KindLeaseLost.
type Lease struct {
	Epoch     int64     `json:"epoch"`
	ExpiresAt time.Time `json:"expires_at"`
}

// TaskOffer is the body of a 200 of tasks/wait.
type TaskOffer struct {
	TaskID string `json:"task_id"`
	// Envelope is the DSSE envelope, carried as is.
	Envelope json.RawMessage `json:"envelope"`
	Lease    Lease           `json:"lease"`
	// Grant is the DSSE envelope of the TaskGrant, GrantKey that of the
	// LeaseKey it is signed with.
	Grant    json.RawMessage `json:"grant"`
	GrantKey json.RawMessage `json:"grant_key"`
	// ServerTime lets a node with a wrong clock see that it has one.
	ServerTime time.Time `json:"server_time"`

	// Type and CreatedAt are for the server's metrics and are not sent, nor are
	// NodeState and OpSeq, which the grant says.
	Type      TaskType  `json:"-"`
	CreatedAt time.Time `json:"-"`
	NodeState NodeState `json:"-"`
	OpSeq     int64     `json:"-"`
}

// TaskResult is the body of POST tasks/{task_id}/result. Posting the same
// result again is answered OK.
type TaskResult struct {
	LeaseEpoch int64 `json:"lease_epoch"`
	// Status is succeeded, failed or cancelled.
	Status TaskStatus `json:"status"`
	// Output is the type's result (Facts, ProbeReport, CordonResult,
	// DrainResult) when Status is succeeded.
	Output json.RawMessage `json:"output,omitempty"`
	// Code and Message say why when Status is failed: a Kind and a sentence.
	Code    Kind   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// EnvelopeSHA256 is the hex SHA-256 of the signed body that was run.
	EnvelopeSHA256 string `json:"envelope_sha256,omitempty"`
	// OutputTail is the end of what the work printed, at most MaxOutputTail
	// bytes of UTF-8. It is for people: no code reads it, and it goes no further
	// than the database.
	OutputTail string    `json:"output_tail,omitempty"`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`

	// Proof is the node's signature of this result, which travels in a header.
	Proof *ResultProof `json:"-"`
}

// Params are a task's parameters in their JSON form.
type Params = json.RawMessage

// Decode reads the output of a succeeded task into v.
func (r TaskResult) Decode(v any) error {
	if err := json.Unmarshal(r.Output, v); err != nil { //workflowcheck:ignore // decoding recorded bytes gives the same value each time
		return Wrap(KindTaskFailed, err, "the node's result is not what its type promises")
	}
	return nil
}

// Encode returns the params in the form a TaskSpec carries.
func (p DrainParams) Encode() Params {
	raw, _ := json.Marshal(p) //nolint:errchkjson // a time and a bool always encode //workflowcheck:ignore
	return raw
}

// TaskProgress is the body of POST tasks/{task_id}/progress. It extends the
// lease. The answer is a ProgressAnswer, or KindLeaseLost when the agent must
// stop.
type TaskProgress struct {
	LeaseEpoch int64  `json:"lease_epoch"`
	Message    string `json:"message,omitempty"`
}

// ProgressAnswer tells the agent how long it now holds the task and whether an
// operator wants it stopped.
type ProgressAnswer struct {
	Lease  Lease `json:"lease"`
	Cancel bool  `json:"cancel,omitempty"`
	// Paused asks the agent to begin nothing new of this task until a later
	// answer says otherwise. What it began goes on.
	Paused bool `json:"paused,omitempty"`
}

// DrainParams are the params of workload.drain.
type DrainParams struct {
	// Deadline is when the agent stops waiting and reports what blocked.
	Deadline time.Time `json:"deadline"`
	// Force kills what has not stopped at the deadline instead of reporting it.
	Force bool `json:"force,omitempty"`
}

// DrainResult is the output of workload.drain.
type DrainResult struct {
	Stopped []string  `json:"stopped"`
	Blocked []Blocker `json:"blocked,omitempty"`
}

// Blocker is a workload that would not end, and why.
type Blocker struct {
	Workload string `json:"workload"`
	Reason   string `json:"reason"`
}

// CordonResult is the output of workload.cordon and workload.uncordon.
type CordonResult struct {
	Cordoned bool `json:"cordoned"`
	// Was is the state before, so that an undo restores what stood.
	Was       bool       `json:"was"`
	Workloads []Workload `json:"workloads"`
}

// Workload is something running on a node that a drain must end.
type Workload struct {
	Name  string    `json:"name"`
	Kind  string    `json:"kind"` // process, systemd, docker
	Since time.Time `json:"since"`
	// Stopping is true once the workload was asked to stop.
	Stopping bool `json:"stopping,omitempty"`
}
