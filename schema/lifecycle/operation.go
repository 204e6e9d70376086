package lifecycle

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// Names that workflow histories and clients share. Changing one breaks running
// operations.
const (
	TaskQueue = "lifecycle"

	UpdateSubmit  = "submit"  // returns once the claim is decided: accepted, or a typed refusal
	UpdateResolve = "resolve" // an operator's decision
	QueryStatus   = "status"  // OperationStatus
	SignalAgent   = "agent"   // AgentEvent: an observation of the node API
)

// OperationInput is the input of every lifecycle workflow. It holds ids and
// intent only, never a secret.
type OperationInput struct {
	OperationID string `json:"operation_id"`
	NodeID      string `json:"node_id"`
	Action      Action `json:"action"`
	Actor       string `json:"actor"`
	// Via is the interface of the request: "api" or "temporal".
	Via           string `json:"via,omitempty"`
	Reason        string `json:"reason,omitempty"`
	CorrelationID string `json:"correlation_id"`
	// Host is part of the workflow ID. Provider and Region are for display and
	// search. The claim reads the authoritative values.
	Host     string  `json:"host,omitempty"`
	Provider string  `json:"provider,omitempty"`
	Region   string  `json:"region,omitempty"`
	Options  Options `json:"options"`
	// StartWithinSeconds is how long after the start of its run the operation may claim
	// its node. The servers' clocks decide, not that of the caller. 0 sets no limit.
	StartWithinSeconds int64 `json:"start_within_seconds,omitempty"`
}

// StartWithin returns how long after the start of its run the operation may claim its
// node, 0 if there is no limit.
func (in OperationInput) StartWithin() time.Duration {
	return time.Duration(in.StartWithinSeconds) * time.Second
}

// Options are an action's flags.
type Options struct {
	// DrainTimeoutSeconds bounds how long workloads may take to end, for drain and
	// for retire with Drain. 0 means DefaultDrainTimeout.
	DrainTimeoutSeconds int64 `json:"drain_timeout_seconds,omitempty"`
	// CordonOnly ends a drain after the cordon.
	CordonOnly bool `json:"cordon_only,omitempty"`
	// Drain makes a retire drain the node first. Without it, a retire of a busy
	// node is rejected.
	Drain bool `json:"drain,omitempty"`
	// Force makes a retire without Drain, a terminate and a remove start although the node
	// runs workloads, or does not say which.
	Force bool `json:"force,omitempty"`
	// Probe makes an enrollment end with a probe of the node's health.
	Probe bool `json:"probe,omitempty"`
	// NewIdentity makes a reactivate begin with a new identity of the node.
	NewIdentity bool `json:"new_identity,omitempty"`
	// Machine chooses the machine that a provisioning creates.
	Machine machine.Options `json:"machine,omitzero"`
	// AgentVersion is the release of an upgrade-agent. Downgrade accepts one that is older than
	// the agent. Release is its signed document: the admin API adds it to the input of the
	// workflow, and no view contains it.
	AgentVersion string `json:"agent_version,omitempty"`
	Downgrade    bool   `json:"downgrade,omitempty"`
	Release      string `json:"release,omitempty"`
	// Recovery is the repair of a recover.
	Recovery recovery.Request `json:"recovery,omitzero"`
}

// Requested returns the options that the request set: without the release's document, which a
// later signature changes.
func (o Options) Requested() Options {
	o.Release = ""
	return o
}

// DrainTimeout returns the drain's time limit.
func (o Options) DrainTimeout() time.Duration {
	if o.DrainTimeoutSeconds <= 0 {
		return DefaultDrainTimeout
	}
	return time.Duration(o.DrainTimeoutSeconds) * time.Second
}

// OperationState is the status of an operation on the wire.
type OperationState string

// The operation states. An operation whose claim was rejected ends as
// OperationRejected.
const (
	OperationAccepted  OperationState = "accepted"
	OperationRunning   OperationState = "running"
	OperationParked    OperationState = "parked"
	OperationCompleted OperationState = "completed"
	OperationFailed    OperationState = "failed"
	OperationCanceled  OperationState = "cancelled"
	OperationRejected  OperationState = "rejected"
	// OperationAbandoned: the operation is open and no run of its workflow is.
	OperationAbandoned OperationState = "abandoned"
)

// OperationStates returns every operation state.
func OperationStates() []OperationState {
	return []OperationState{OperationAccepted, OperationRunning, OperationParked, OperationAbandoned, OperationCompleted,
		OperationFailed, OperationCanceled, OperationRejected}
}

// Ended reports whether the operation has ended.
func (s OperationState) Ended() bool {
	switch s {
	case OperationCompleted, OperationFailed, OperationCanceled, OperationRejected:
		return true
	}
	return false
}

// PhaseState is the state of one phase of an operation.
type PhaseState string

// The phase states.
const (
	PhasePending   PhaseState = "pending"
	PhaseRunning   PhaseState = "running"
	PhaseParked    PhaseState = "parked"
	PhaseCompleted PhaseState = "completed"
	PhaseSkipped   PhaseState = "skipped"
	PhaseForced    PhaseState = "forced"
	PhaseFailed    PhaseState = "failed"
	PhaseCanceled  PhaseState = "cancelled"
)

// Phase is one phase of a running operation.
type Phase struct {
	Name      string     `json:"name"`
	Title     string     `json:"title"`
	State     PhaseState `json:"state"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Attempt counts the attempts by decision: 1, plus one for each retry, force
	// or extend.
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason,omitempty"`
}

// Attention is who must act for an operation to continue.
type Attention string

// The values of the search attribute AttrAttention.
const (
	AttentionNone         Attention = "none"
	AttentionAgent        Attention = "agent"
	AttentionProvider     Attention = "provider"
	AttentionOperator     Attention = "operator"
	AttentionCompensation Attention = "compensation"
)

// Operation is the state of one operation, as the CLI, the API and the
// workflow's status query show it.
type Operation struct {
	OperationID   string         `json:"operation_id"`
	WorkflowID    string         `json:"workflow_id"`
	RunID         string         `json:"run_id"`
	Action        Action         `json:"action"`
	Status        OperationState `json:"status"`
	Phases        []Phase        `json:"phases"`
	Stuck         *Stuck         `json:"stuck,omitempty"`
	Actor         string         `json:"actor,omitempty"`
	Reason        string         `json:"reason,omitempty"`
	Options       Options        `json:"options,omitzero"`
	CorrelationID string         `json:"correlation_id,omitempty"`
	OpSeq         int64          `json:"op_seq,omitempty"`
	StartedAt     *time.Time     `json:"started_at,omitempty"`
	EndedAt       *time.Time     `json:"ended_at,omitempty"`
	DeadlineAt    *time.Time     `json:"deadline_at,omitempty"`
	// Outcome describes in a sentence how the operation ended.
	Outcome string `json:"outcome,omitempty"`
}

// End records how and when the operation ended.
func (o *Operation) End(s OperationState, outcome string, at time.Time) {
	o.Status, o.Outcome, o.EndedAt, o.Stuck, o.DeadlineAt = s, outcome, &at, nil, nil
}

// NodeRef is the node in an operation's status.
type NodeRef struct {
	NodeID string    `json:"id"`
	Host   string    `json:"host"`
	State  NodeState `json:"state"`
}

// OperationStatus is the status document of an operation: the response to the status
// query and the output of op show -o json.
type OperationStatus struct {
	Operation Operation `json:"operation"`
	Node      NodeRef   `json:"node"`
}
