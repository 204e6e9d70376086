package activities

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// ClaimRequest asks for a node on behalf of an operation.
type ClaimRequest struct {
	lifecycle.OperationInput
	WorkflowID string `json:"workflow_id"`
	RunID      string `json:"run_id"`
	// RunStartedAt is when the run with RunID started, by Temporal's clock. A run that
	// started before the one whose operation is open is refused with KindFenced.
	RunStartedAt time.Time `json:"run_started_at,omitzero"`
	// Document is the status document of the claimed operation without op_seq, node
	// state and phases, which the claim determines. It is stored with the operation,
	// as in Advance, in its first phase.
	Document *lifecycle.OperationStatus `json:"document,omitempty"`
}

// StartBy returns the time after which the claim is rejected, the zero time if there is no
// limit.
func (r ClaimRequest) StartBy() time.Time {
	if r.StartWithinSeconds == 0 || r.RunStartedAt.IsZero() {
		return time.Time{}
	}
	return r.RunStartedAt.Add(r.StartWithin())
}

// Claim is the result of a claim: the node and the operation's plan.
type Claim struct {
	Fence Fence `json:"fence"`
	// Plan is the operation's plan, computed by ClaimNode. A run keeps its
	// plan, so that a later version of the plans cannot break it.
	Plan lifecycle.Plan `json:"plan,omitzero"`
	// Prior is the node's state at the start, which a cancel restores.
	Prior lifecycle.NodeState `json:"prior"`
	// State is the node's state after the claim.
	State     lifecycle.NodeState `json:"state"`
	Host      string              `json:"host"`
	SKU       inventory.SKU       `json:"sku"`
	GPUsTotal int                 `json:"gpus_total"`
	// StartedAt is when the operation and its first phase started, by the database's
	// clock.
	StartedAt time.Time `json:"started_at"`
	Provider  string    `json:"provider"`
	// Creates is set if the provider creates machines, and Limits are those of the provider.
	Creates     bool           `json:"creates,omitempty"`
	Limits      machine.Limits `json:"limits,omitzero"`
	Incarnation int64          `json:"incarnation"`
	Cordoned    bool           `json:"cordoned"`
	// LeftCordon is set if the operation supersedes an abandoned one that began on a node
	// without a cordon: a cordon that it finds is that of the abandoned operation.
	LeftCordon bool `json:"left_cordon,omitempty"`
	// Instance is the instance of a provisioning, which has an ID before its machine exists.
	Instance lifecycle.Instance `json:"instance,omitzero"`
}

// Source describes the node's provider, without its catalog.
func (c Claim) Source() machine.Info {
	return machine.Info{Name: c.Provider, Creates: c.Creates, Limits: c.Limits}
}

// Registration is what a node's registration requires of its machine.
type Registration struct {
	SKU       inventory.SKU `json:"sku"`
	GPUsTotal int           `json:"gpus_total"`
}

// Fence identifies the operation that holds a node. Every write of an operation
// carries it. A write whose op_seq is not the node's is rejected with KindFenced
// and changes nothing.
type Fence struct {
	NodeID        string `json:"node_id"`
	OperationID   string `json:"operation_id"`
	OpSeq         int64  `json:"op_seq"`
	Actor         string `json:"actor"`
	Via           string `json:"via,omitempty"`
	CorrelationID string `json:"correlation_id"`
}

// Advance is an operation's progress. Zero fields change nothing.
type Advance struct {
	Phase string `json:"phase"`
	// Step orders the advances of one operation: it increases with each, by the
	// workflow's clock in microseconds, which also increases over a reset. A call whose
	// step is not greater than the recorded one changes nothing, so that a repeat is
	// harmless and a late one, also of the run before a reset, cannot undo a newer advance.
	Step int64 `json:"step"`
	// Document is the operation's status document as of this call: phases, stuck
	// object, options. It is stored with the operation, so that readers need
	// neither Temporal nor a worker. nil keeps the stored one.
	Document *lifecycle.OperationStatus `json:"document,omitempty"`
	// Stuck parks the operation; nil means that it runs.
	Stuck *lifecycle.Stuck `json:"stuck,omitempty"`
	// ParkID identifies a park, so that a repeated call, also with another step, is audited
	// once: a workflow task that is lost runs again at another time.
	ParkID string `json:"park_id,omitempty"`
	// Continued is set when the park is on record: a new run continues the operation, or a
	// run confirms that it is still parked.
	Continued bool `json:"continued,omitempty"`
	// Instance and FactsTask change the node when set. FactsTask is the step of the
	// operation's task whose output becomes the node's facts.
	Instance  lifecycle.InstanceState `json:"instance,omitempty"`
	FactsTask string                  `json:"facts_task,omitempty"`
	// Decision is the operator's decision that caused the advance. It is audited once
	// for its ID, whatever the step.
	Decision *lifecycle.ResolveRequest `json:"decision,omitempty"`
	// Applied is set if the operation has applied Decision before it was recorded: the
	// database did not respond in time. It is then audited even if the operation has ended.
	Applied bool `json:"applied,omitempty"`
}

// Cancels reports whether the advance records the decision to cancel.
func (a Advance) Cancels() bool {
	return a.Decision != nil && a.Decision.Decision == lifecycle.DecisionCancel
}

// Finish ends an operation.
type Finish struct {
	// Document is the operation's final status, as in Advance.
	Document *lifecycle.OperationStatus `json:"document,omitempty"`
	// Status is completed, canceled or failed.
	Status lifecycle.OperationState `json:"status"`
	// Node is the node's new state. Empty keeps it.
	Node lifecycle.NodeState `json:"node,omitempty"`
	// Instance is the instance's new state. Empty keeps it.
	Instance lifecycle.InstanceState `json:"instance,omitempty"`
	// DenyIdentity voids the node's certificates and tokens in the same
	// transaction and ends its open polls (remove).
	DenyIdentity bool `json:"deny_identity,omitempty"`
	// VoidTokens voids the node's live enrollment tokens and unused certificates
	// (a canceled enrollment).
	VoidTokens bool   `json:"void_tokens,omitempty"`
	Outcome    string `json:"outcome"`
}

// TeardownForced reports whether a person decided that the operation ends without the
// provider's confirmation of the teardown.
func (e Finish) TeardownForced() bool {
	return e.Document != nil && slices.ContainsFunc(e.Document.Operation.Phases, func(p lifecycle.Phase) bool {
		return p.Name == lifecycle.PhaseTeardown && p.State == lifecycle.PhaseForced
	})
}

// Enrollment is the progress of a node's enrollment in its current incarnation.
type Enrollment struct {
	// Incarnation is the current incarnation, which the fields below describe. The
	// claim of a reissued token starts the next one.
	Incarnation int64 `json:"incarnation,omitempty"`
	// ReissueIssued is true while a token of PurposeReissue, or a reference to a
	// bundle with one, is live and not claimed.
	ReissueIssued bool `json:"reissue_issued,omitempty"`

	BundleIssued bool `json:"bundle_issued"`
	TokenClaimed bool `json:"token_claimed"`
	// Polled is true once the agent made an authenticated poll.
	Polled bool `json:"polled"`
	// Removed is true once the node is removed. The other fields are final then.
	Removed bool `json:"removed,omitempty"`
}
