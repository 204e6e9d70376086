package task

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Status is the status of a node task.
type Status string

// The task statuses. Succeeded, failed and cancelled are terminal. A lost task is
// given up, and comes back when its node is heard of again or an operator says so.
const (
	Pending    Status = "pending"
	Dispatched Status = "dispatched"
	Running    Status = "running"
	Succeeded  Status = "succeeded"
	Failed     Status = "failed"
	Canceled   Status = "cancelled"
	Lost       Status = "lost"
)

// Terminal reports whether no further change of the status is possible.
func (s Status) Terminal() bool {
	return slices.Contains([]Status{Succeeded, Failed, Canceled}, s)
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

// Type names what a node can be asked to do. The list is closed: an agent
// refuses every other type.
type Type string

// The task types of this version.
const (
	FactsCollect     Type = "facts.collect"
	NodeProbe        Type = "node.probe"
	WorkloadCordon   Type = "workload.cordon"
	WorkloadUncordon Type = "workload.uncordon"
	WorkloadDrain    Type = "workload.drain"
	UpdateTrust      Type = "agent.update_trust"
	WipeIdentity     Type = "agent.wipe_identity"
)

// TypeInfo is one row of the table of task types.
type TypeInfo struct {
	Type   Type
	Effect Effect
	// MaxRuntime bounds one execution on the node unless the params give a
	// longer deadline (workload.drain).
	MaxRuntime time.Duration
	Does       string
}

// Types returns the table of task types.
func Types() []TypeInfo {
	return []TypeInfo{
		{FactsCollect, EffectRead, 30 * time.Second, "OS, kernel, CPUs, memory, disks, NICs, GPUs"},
		{NodeProbe, EffectRead, 60 * time.Second, "disk, memory, GPUs, clock offset"},
		{WorkloadCordon, EffectIdempotent, 30 * time.Second, "take no new workload"},
		{WorkloadUncordon, EffectIdempotent, 30 * time.Second, "take workloads again"},
		{WorkloadDrain, EffectDestructive, 10 * time.Minute, "stop the workloads before a deadline, report what blocked"},
		{UpdateTrust, EffectIdempotent, 60 * time.Second, "take the newest verifier sets and CA bundles"},
		{WipeIdentity, EffectDestructive, 30 * time.Second, "give up the node's identity for good, and stop"},
	}
}

// Row returns the type's row; ok is false for a type outside the closed list.
func (t Type) Info() (row TypeInfo, ok bool) {
	for _, r := range Types() {
		if r.Type == t {
			return r, true
		}
	}
	return TypeInfo{}, false
}

// Limits and timings of the node API and of tasks, from design/architecture.md
// §7 and interfaces.md §3.
const (
	LeaseDuration = 60 * time.Second // extended by progress
)

// PayloadType is the DSSE payload type of a signed task. It is part of what
// is signed, so a signature over one kind of document never passes for another.
const PayloadType = "application/vnd.gpuaas.task.v1+json"

// Payload is the signed body of a task: DSSE payload of type
// PayloadType. A node verifies the bytes, parses them once and strictly
// (DecodeStrict), and accepts the task only when env, node and incarnation are
// its own and now lies in [NotBefore, ExpiresAt]. Params hold no secret.
type Payload struct {
	V            int             `json:"v"` // 1
	Env          string          `json:"env"`
	TaskID       string          `json:"task_id"`
	NodeID       string          `json:"node_id"`
	Incarnation  int64           `json:"incarnation"`
	Type         Type            `json:"type"`
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
	Expect       Expectation     `json:"expect"`
	// MinSetVersion is the oldest verifier set that may judge this task.
	MinSetVersion int64  `json:"min_set_version"`
	OperationID   string `json:"operation_id"`
	WorkflowID    string `json:"workflow_id"`
	CorrelationID string `json:"correlation_id"`
}

// Owner is the activity that waits for a task: where the result goes.
type Owner struct {
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

// Result is the body of POST tasks/{task_id}/result. Posting the same
// result again is answered OK.
type Result struct {
	LeaseEpoch int64 `json:"lease_epoch"`
	// Status is succeeded, failed or cancelled.
	Status Status `json:"status"`
	// Output is the type's result (Facts, ProbeReport, CordonResult,
	// DrainResult) when Status is succeeded.
	Output json.RawMessage `json:"output,omitempty"`
	// Code and Message say why when Status is failed: a Kind and a sentence.
	Code    schema.Kind `json:"code,omitempty"`
	Message string      `json:"message,omitempty"`
	// EnvelopeSHA256 is the hex SHA-256 of the signed body that was run.
	EnvelopeSHA256 string `json:"envelope_sha256,omitempty"`
	// OutputTail is the end of what the work printed, at most MaxOutputTail
	// bytes of UTF-8. It is for people: no code reads it, and it goes no further
	// than the database.
	OutputTail string    `json:"output_tail,omitempty"`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`

	// Proof is the node's signature of this result, which travels in a header.
	Proof *trust.ResultProof `json:"-"`
}

// Params are a task's parameters in their JSON form.
type Params = json.RawMessage

// Decode reads the output of a succeeded task into v.
func (r Result) Decode(v any) error {
	if err := json.Unmarshal(r.Output, v); err != nil { //workflowcheck:ignore // decoding recorded bytes gives the same value each time
		return schema.Wrap(schema.KindTaskFailed, err, "the node's result is not what its type promises")
	}
	return nil
}

// Encode returns the params in the form a TaskSpec carries.
func (p DrainParams) Encode() Params {
	raw, _ := json.Marshal(p) //nolint:errchkjson // a time and a bool always encode //workflowcheck:ignore
	return raw
}

// Progress is the body of POST tasks/{task_id}/progress. It extends the
// lease. The answer is a ProgressResponse, or KindLeaseLost when the agent must
// stop.
type Progress struct {
	LeaseEpoch int64  `json:"lease_epoch"`
	Message    string `json:"message,omitempty"`
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
