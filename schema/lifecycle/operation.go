package lifecycle

import "time"

// Names that workflow histories and clients share. Changing one breaks running
// operations.
const (
	TaskQueue = "lifecycle"

	UpdateSubmit  = "submit"  // early answer: accepted, or a typed refusal
	UpdateResolve = "resolve" // an operator's decision
	QueryStatus   = "status"  // OperationStatus
	SignalAgent   = "agent"   // AgentEvent: what the node API saw
)

// WorkflowType returns the workflow type of an action, for example Drain; ok is
// false for an action that runs as none.
func WorkflowType(a Action) (name string, ok bool) {
	switch a {
	case ActionEnroll:
		return "Enroll", true
	case ActionProvision:
		return "Provision", true
	case ActionDrain:
		return "Drain", true
	case ActionRetire:
		return "Retire", true
	case ActionReactivate:
		return "Reactivate", true
	case ActionRemove:
		return "Remove", true
	case ActionReissueEnrollment:
		return "ReissueEnrollment", true
	}
	return "", false
}

// ActionOfWorkflow is the reverse of WorkflowType; "" for an unknown type.
func ActionOfWorkflow(workflowType string) Action {
	for _, m := range Moves() {
		if name, ok := WorkflowType(m.Action); ok && name == workflowType {
			return m.Action
		}
	}
	return ""
}

// DefaultDrainTimeout is how long a drain lets work end by itself.
const DefaultDrainTimeout = 10 * time.Minute

// OperationInput is the input of every lifecycle workflow. It holds ids and
// intent only, never a secret.
type OperationInput struct {
	OperationID string `json:"operation_id"`
	NodeID      string `json:"node_id"`
	Action      Action `json:"action"`
	Actor       string `json:"actor"`
	// Via is the door the request came through: "api" or "temporal".
	Via           string `json:"via,omitempty"`
	Reason        string `json:"reason,omitempty"`
	CorrelationID string `json:"correlation_id"`
	// Host, Provider and Region are for display and search; the claim reads
	// the truth.
	Host     string  `json:"host,omitempty"`
	Provider string  `json:"provider,omitempty"`
	Region   string  `json:"region,omitempty"`
	Options  Options `json:"options"`
}

// Options are an action's flags.
type Options struct {
	// DrainTimeoutSeconds bounds how long work may take to end by itself, for
	// drain and for retire with Drain. 0 means DefaultDrainTimeout.
	DrainTimeoutSeconds int64 `json:"drain_timeout_seconds,omitempty"`
	// CordonOnly makes a drain stop after the cordon.
	CordonOnly bool `json:"cordon_only,omitempty"`
	// Drain makes a retire drain first instead of refusing a busy node.
	Drain bool `json:"drain,omitempty"`
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

// The operation states. An operation whose claim was refused ends as
// OperationRejected.
const (
	OperationAccepted  OperationState = "accepted"
	OperationRunning   OperationState = "running"
	OperationParked    OperationState = "parked"
	OperationCompleted OperationState = "completed"
	OperationFailed    OperationState = "failed"
	OperationCanceled  OperationState = "cancelled"
	OperationRejected  OperationState = "rejected"
)

// Ended reports whether the operation is over.
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
	// Attempt counts the tries an operator can see: 1, plus one for each
	// retry, force or extend.
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason,omitempty"`
}

// WaitingOn says who must act for an operation to go on.
type Attention string

// The values of the WaitingOn search attribute.
const (
	AttentionNone         Attention = "none"
	AttentionAgent        Attention = "agent"
	AttentionProvider     Attention = "provider"
	AttentionOperator     Attention = "operator"
	AttentionCompensation Attention = "compensation"
)

// Stuck says why an operation does not go on and what helps.
type Stuck struct {
	Phase     string    `json:"phase"`
	WaitingOn Attention `json:"waiting_on"`
	// Reason is a stable code, for example drain_blocked.
	Reason string `json:"reason"`
	// Message says in a sentence what happened.
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
	// Cause is the likely cause, Next the command to type: that of the first
	// option.
	Cause string `json:"cause"`
	Next  string `json:"next"`
	// Options are the decisions that are possible now, the least harmful first.
	Options []Option `json:"options,omitempty"`
}

// Option is one decision that an operator may take about a parked operation.
type Option struct {
	Decision Decision `json:"decision"`
	// Command is the exact command to type. It names the operation.
	Command string `json:"command"`
	// Does says in a sentence what the decision does in this phase.
	Does string `json:"does"`
	Harm Harm   `json:"harm"`
}

// Harm says what a decision may destroy.
type Harm string

// The harms, least first.
const (
	HarmNone  Harm = "none"  // nothing is lost
	HarmWork  Harm = "work"  // workloads on the node may be killed
	HarmFinal Harm = "final" // it cannot be undone
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
	CorrelationID string         `json:"correlation_id,omitempty"`
	OpSeq         int64          `json:"op_seq,omitempty"`
	StartedAt     *time.Time     `json:"started_at,omitempty"`
	EndedAt       *time.Time     `json:"ended_at,omitempty"`
	DeadlineAt    *time.Time     `json:"deadline_at,omitempty"`
	// Outcome says in a sentence how an ended operation ended.
	Outcome string `json:"outcome,omitempty"`
}

// NodeRef is the little that an operation knows of its node.
type NodeRef struct {
	NodeID string    `json:"id"`
	Host   string    `json:"host"`
	State  NodeState `json:"state"`
}

// OperationStatus answers the status query and is what op show -o json prints.
type OperationStatus struct {
	Operation Operation `json:"operation"`
	Node      NodeRef   `json:"node"`
}

// Decision is what an operator may decide about an operation.
type Decision string

// The decisions. Retry runs the phase again; skip goes on without it; force
// runs it without its safety; cancel undoes what was done and restores the
// state at entry; extend gives the phase its time once more.
const (
	DecisionRetry  Decision = "retry"
	DecisionSkip   Decision = "skip"
	DecisionForce  Decision = "force"
	DecisionCancel Decision = "cancel"
	DecisionExtend Decision = "extend"
)

// Decisions returns every decision.
func Decisions() []Decision {
	return []Decision{DecisionRetry, DecisionSkip, DecisionForce, DecisionCancel, DecisionExtend}
}

// NeedsReason reports whether a decision must say why: one that leaves out what
// the operation would have done, or its safety. The others may.
func (d Decision) NeedsReason() bool { return d == DecisionSkip || d == DecisionForce }

// ResolveRequest is the argument of the resolve update.
type ResolveRequest struct {
	// OperationID, Phase and StuckSince address the decision. A decision that no
	// longer fits is refused with schema.KindDecisionOutdated. An empty field is
	// not compared.
	OperationID string     `json:"operation_id,omitempty"`
	Phase       string     `json:"phase,omitempty"`
	StuckSince  *time.Time `json:"stuck_since,omitempty"`
	Decision    Decision   `json:"decision"`
	Reason      string     `json:"reason"`
	By          string     `json:"by"`
	// Via is the door the decision came through: "api" or "temporal".
	Via string `json:"via,omitempty"`
}

// AgentEvent is the argument of SignalAgent.
type AgentEvent struct {
	Event AgentEventName `json:"event"`
	// NodeID and Incarnation say whose event it is, so that one of an older
	// identity is ignored.
	NodeID      string `json:"node_id"`
	Incarnation int64  `json:"incarnation"`
	// Step is the task's step within its operation, of EventTaskReturned only.
	Step        string `json:"step,omitempty"`
	OperationID string `json:"operation_id,omitempty"`
}

// AgentEventName names what the node API saw.
type AgentEventName string

// The agent events.
const (
	EventBundleIssued AgentEventName = "bundle_issued"
	EventTokenClaimed AgentEventName = "token_claimed"
	EventFirstPoll    AgentEventName = "first_poll"
	// EventNodeRemoved ends what still waits for the node's agent.
	EventNodeRemoved AgentEventName = "node_removed"
	// EventTaskReturned: a task that was given up for lost was heard of again, or
	// an operator wants it offered again. Step names it.
	EventTaskReturned AgentEventName = "task_back"
)

// The custom search attributes. All are keywords but the last two, which are
// datetimes.
const (
	AttrNodeID      = "NodeId"
	AttrHost        = "Host"
	AttrPhase       = "Phase"
	AttrAttention   = "Attention"
	AttrStuckReason = "StuckReason"
	AttrOperationID = "OperationId"
	AttrRequester   = "Requester"
	AttrProvider    = "Provider"
	AttrRegion      = "Region"
	AttrBatchID     = "BatchId"
	AttrDeadlineAt  = "DeadlineAt"
	AttrStuckSince  = "StuckSince"
)

// KeywordAttributes returns the search attributes of type keyword.
func KeywordAttributes() []string {
	return []string{AttrNodeID, AttrHost, AttrPhase, AttrAttention, AttrStuckReason,
		AttrOperationID, AttrRequester, AttrProvider, AttrRegion, AttrBatchID}
}

// DatetimeAttributes returns the search attributes of type datetime.
func DatetimeAttributes() []string { return []string{AttrDeadlineAt, AttrStuckSince} }
