package task

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Status is the status of a node task.
type Status string

// The task statuses. `succeeded`, `failed` and `cancelled` are terminal. A lost task
// outlived its lease; it resumes when its node reports again or an operator
// resumes it.
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

// Effect classifies the consequence of running a task twice. It determines whether
// the reclaimer may dispatch a task again without an operator's decision.
type Effect string

// The effects.
const (
	EffectRead        Effect = "read"
	EffectIdempotent  Effect = "idempotent"
	EffectDestructive Effect = "destructive"
)

// Type names the work of a task. The list is closed: an agent rejects every
// other type.
type Type string

// The task types of this version.
const (
	FactsCollect     Type = "facts.collect"       // OS, kernel, CPUs, memory, disks, NICs, GPUs
	NodeProbe        Type = "node.probe"          // disk, memory, GPUs, clock offset
	WorkloadCordon   Type = "workload.cordon"     // accept no new workloads
	WorkloadUncordon Type = "workload.uncordon"   // accept workloads again
	WorkloadDrain    Type = "workload.drain"      // stop the workloads before a deadline
	UpdateTrust      Type = "agent.update_trust"  // fetch the newest verifier sets and CA bundles
	NewIdentity      Type = "agent.new_identity"  // enroll again, with new keys
	WipeIdentity     Type = "agent.wipe_identity" // delete the node's identity and stop
	AgentUpgrade     Type = "agent.upgrade"       // run another release of the agent
	NodeReboot       Type = "node.reboot"         // restart the node, after the result is reported
	GPUReset         Type = "gpu.reset"           // reset GPUs that no process uses
	NodeVerify       Type = "node.verify"         // test the node under load after a repair
)

// UpgradeTime is how long an agent may take to download a release, and again to try it.
const UpgradeTime = 10 * time.Minute

const (
	// TrialTime is how long one start of a release on trial may take until its first
	// successful poll.
	TrialTime = 5 * time.Minute
	// TrialStarts is how often a release on trial is started. A node that reboots or loses
	// power during the trial uses up one.
	TrialStarts = 3
)

// TypeInfo is one row of the table of task types.
type TypeInfo struct {
	Type   Type
	Effect Effect
	// MaxRuntime bounds one execution on the node unless the params set a later
	// deadline (workload.drain).
	MaxRuntime time.Duration
}

// Types is the table of task types.
func Types() []TypeInfo {
	return []TypeInfo{
		{FactsCollect, EffectRead, 30 * time.Second},
		{NodeProbe, EffectRead, 60 * time.Second},
		{WorkloadCordon, EffectIdempotent, 30 * time.Second},
		{WorkloadUncordon, EffectIdempotent, 30 * time.Second},
		{WorkloadDrain, EffectDestructive, 10 * time.Minute},
		{UpdateTrust, EffectIdempotent, 60 * time.Second},
		{NewIdentity, EffectIdempotent, 60 * time.Second},
		{WipeIdentity, EffectDestructive, 30 * time.Second},
		{AgentUpgrade, EffectDestructive, UpgradeTime},
		{NodeReboot, EffectDestructive, time.Minute},
		{GPUReset, EffectDestructive, 5 * time.Minute},
		{NodeVerify, EffectIdempotent, VerifyTime},
	}
}

// Info returns the type's row; ok is false for a type outside the closed list.
func (t Type) Info() (row TypeInfo, ok bool) {
	for _, r := range Types() {
		if r.Type == t {
			return r, true
		}
	}
	return TypeInfo{}, false
}

// LeaseDuration is how long a lease lasts. A progress call extends it.
const LeaseDuration = 60 * time.Second

// PayloadType is the DSSE payload type of a signed task. It is part of what
// is signed, so a signature over one kind of document never passes for another.
const PayloadType = "application/vnd.gpuaas.task.v1+json"

// Payload is the signed body of a task: DSSE payload of type PayloadType. A node
// verifies the bytes, parses them once with schema.DecodeStrict, and accepts the
// task only if env, node and incarnation are its own and the time is within
// [NotBefore, ExpiresAt]. Params contain no secret.
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
	ParamsSHA256 string          `json:"params_sha256"` // hex, of Params byte by byte
	Seq          int64           `json:"seq"`           // increases per node
	Attempt      int64           `json:"attempt"`       // of the step within its operation, from 1
	IssuedAt     time.Time       `json:"issued_at"`
	NotBefore    time.Time       `json:"not_before"`
	ExpiresAt    time.Time       `json:"expires_at"`
	MaxRuntime   int64           `json:"max_runtime_seconds"`
	Expect       Expectation     `json:"expect"`
	// MinSetVersion is the oldest verifier set that may verify this task.
	MinSetVersion int64  `json:"min_set_version"`
	OperationID   string `json:"operation_id"`
	WorkflowID    string `json:"workflow_id"`
	CorrelationID string `json:"correlation_id"`
}

// Verified is a payload whose signature and fields a node verified.
type Verified struct {
	Payload Payload
	Raw     []byte    // the signed bytes
	Digest  string    // hex SHA-256 of Raw
	At      time.Time // the time by which it was verified
}

// Owner identifies the activity that waits for a task's result.
type Owner struct {
	WorkflowID string
	RunID      string
	ActivityID string
}

// Lease assigns a task to a node until ExpiresAt. Epoch increases with every
// dispatch; a result of another epoch is rejected with KindLeaseLost.
type Lease struct {
	Epoch     int64     `json:"epoch"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Result is the body of POST tasks/{task_id}/result. Posting the same result
// again succeeds.
type Result struct {
	LeaseEpoch int64 `json:"lease_epoch"`
	// Status is `succeeded`, `failed` or `cancelled`.
	Status Status `json:"status"`
	// Output is the type's result (Facts, ProbeReport, CordonResult,
	// DrainResult, UpgradeResult) when Status is succeeded.
	Output json.RawMessage `json:"output,omitempty"`
	// Code and Message explain a failure: a kind and a sentence.
	Code    schema.Kind `json:"code,omitempty"`
	Message string      `json:"message,omitempty"`
	// EnvelopeSHA256 is the hex SHA-256 of the signed body that the node ran; empty
	// if the agent rejected the task before it read one.
	EnvelopeSHA256 string `json:"envelope_sha256,omitempty"`
	// OutputTail is the end of the work's printed output, at most MaxOutputTail
	// bytes of UTF-8. It is for operators: no code parses it, and only the
	// database stores it.
	OutputTail string    `json:"output_tail,omitempty"`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
}

// Params are a task's parameters in their JSON form.
type Params = json.RawMessage

// Decode reads the output of a succeeded task into v.
func (r Result) Decode(v any) error {
	if err := json.Unmarshal(r.Output, v); err != nil { //workflowcheck:ignore // decoding recorded bytes gives the same value each time
		return schema.Wrap(schema.KindTaskFailed, err, "the node's result does not match the task type")
	}
	return nil
}

// Encode returns the params in the form a TaskSpec carries.
func (p DrainParams) Encode() Params {
	raw, _ := json.Marshal(p) //nolint:errchkjson // a time and a bool always encode //workflowcheck:ignore
	return raw
}

// Progress is the body of POST tasks/{task_id}/progress, which extends the
// lease. The response is a wire.ProgressResponse, or KindLeaseLost if the agent
// must stop the task.
type Progress struct {
	LeaseEpoch int64  `json:"lease_epoch"`
	Message    string `json:"message,omitempty"`
}

// UncordonParams are the params of workload.uncordon.
type UncordonParams struct {
	// KeepCordon restores what drains changed, and leaves the cordon as it is.
	KeepCordon bool `json:"keep_cordon,omitempty"`
}

// Encode returns p as params.
func (p UncordonParams) Encode() Params {
	raw, _ := json.Marshal(p) //nolint:errchkjson // a bool always encodes //workflowcheck:ignore
	return raw
}

// DrainParams are the params of workload.drain.
type DrainParams struct {
	// Deadline is when the agent stops waiting and reports the workloads that are
	// still running.
	Deadline time.Time `json:"deadline"`
	// Force kills those workloads at the deadline instead of reporting them, and succeeds
	// although GPU processes or unknown workloads are left.
	Force bool `json:"force,omitempty"`
}

// DrainResult is the output of workload.drain.
type DrainResult struct {
	Stopped []string  `json:"stopped"`
	Blocked []Blocker `json:"blocked,omitempty"`
	// Ignored are the GPU processes and the unknown workloads in spite of which a forced
	// drain succeeded.
	Ignored []Blocker `json:"ignored,omitempty"`
}

// Blocker is a workload that did not stop, with the reason.
type Blocker struct {
	Workload string `json:"workload"`
	// Kind is that of the workload.
	Kind   string `json:"kind,omitempty"`
	Reason string `json:"reason"`
}

// UpgradeParams are the params of agent.upgrade.
type UpgradeParams struct {
	// Release is the signed document of the release: a DSSE envelope of a trust.Release.
	Release string `json:"release"`
	// Downgrade accepts a release that is older than the version that runs.
	Downgrade bool `json:"downgrade,omitempty"`
}

// Encode returns the params in the form a TaskSpec carries.
func (p UpgradeParams) Encode() Params {
	raw, _ := json.Marshal(p) //nolint:errchkjson // a text and a bool always encode //workflowcheck:ignore
	return raw
}

// UpgradeResult is the output of agent.upgrade. The new agent reports it after its first
// successful poll.
type UpgradeResult struct {
	// Version is what runs now.
	Version string `json:"version"`
}

// CordonResult is the output of workload.cordon and workload.uncordon.
type CordonResult struct {
	Cordoned bool `json:"cordoned"`
	// Was is the previous state, which an undo restores.
	Was       bool       `json:"was"`
	Workloads []Workload `json:"workloads"`
}

// The kinds of workloads that no workload driver reports. The others have the name of
// their driver.
const (
	// KindGPUProcess is a process that uses a GPU, as nvidia-smi lists it. It may belong
	// to another workload of the list. A drain waits for it and never stops it.
	KindGPUProcess = "gpu-process"
	// KindUnknown stands for workloads that the agent cannot list: its name says why.
	KindUnknown = "unknown"
	// KindLastServer stands for the control plane of a cluster that would stop with the node:
	// its name says why, and what to do. A drain stops no workload of the node while it is
	// listed, unless the drain is forced.
	KindLastServer = "last-server"
)

// Stoppable reports whether a drain can stop the workload.
func (w Workload) Stoppable() bool {
	return w.Kind != KindUnknown && w.Kind != KindLastServer && w.Kind != KindGPUProcess
}

// Workload is a process, unit, container or pod that a drain must stop.
type Workload struct {
	Name  string    `json:"name"`
	Kind  string    `json:"kind"` // systemd, docker, kubernetes, process, KindGPUProcess, KindUnknown or KindLastServer
	Since time.Time `json:"since"`
	// Stopping is true once the workload was asked to stop.
	Stopping bool `json:"stopping,omitempty"`
	// Warning is what an operator should know before a drain ends the workload, such as "its
	// data is lost"; empty for nothing. It is a text of the node for people only.
	Warning string `json:"warning,omitempty"`
}
