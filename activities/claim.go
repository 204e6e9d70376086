package activities

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// ClaimRequest asks for a node on behalf of an operation.
type ClaimRequest struct {
	OperationID   string            `json:"operation_id"`
	NodeID        string            `json:"node_id"`
	Action        lifecycle.Action  `json:"action"`
	WorkflowID    string            `json:"workflow_id"`
	RunID         string            `json:"run_id"`
	Actor         string            `json:"actor"`
	Via           string            `json:"via,omitempty"`
	Reason        string            `json:"reason,omitempty"`
	CorrelationID string            `json:"correlation_id"`
	Options       lifecycle.Options `json:"options"`
}

// Claim is what a claimed node looks like to its operation.
type Claim struct {
	Fence Fence `json:"fence"`
	// Prior is the node's state at entry, which a cancel restores.
	Prior lifecycle.NodeState `json:"prior"`
	// State is the node's state after the claim.
	State       lifecycle.NodeState     `json:"state"`
	Host        string                  `json:"host"`
	SKU         inventory.SKU           `json:"sku"`
	GPUsTotal   int                     `json:"gpus_total"`
	Region      string                  `json:"region"`
	Provider    string                  `json:"provider"`
	Incarnation int64                   `json:"incarnation"`
	Cordoned    bool                    `json:"cordoned"`
	Instance    lifecycle.InstanceState `json:"instance,omitempty"`
	ClaimedAt   time.Time               `json:"claimed_at"`
}

// Fence names the operation that owns a node. Every write of an operation
// carries it; a write with an op_seq that is no longer the node's is
// KindFenced and changes nothing.
type Fence struct {
	NodeID        string `json:"node_id"`
	OperationID   string `json:"operation_id"`
	OpSeq         int64  `json:"op_seq"`
	Actor         string `json:"actor"`
	Via           string `json:"via,omitempty"`
	CorrelationID string `json:"correlation_id"`
}

// Advance records an operation's progress. Zero fields leave what stands.
type Advance struct {
	Phase string `json:"phase"`
	// Step numbers the advances of one operation from 1, rising. A call whose
	// step is not above the one on record changes nothing, so a late repeat
	// cannot undo a newer one. 0 leaves it to the content to tell a repeat.
	Step int64 `json:"step,omitempty"`
	// RunID is the run that says so, "" when it is not known. A run that was
	// reset goes on as another, which the operation names from then on.
	RunID string `json:"-"`
	// Document is the operation's whole status as of this call: phases, what it
	// is stuck on, options. It is stored with the operation, so that readers need
	// neither Temporal nor a worker. nil leaves the stored one.
	Document *lifecycle.OperationStatus `json:"document,omitempty"`
	// Stuck parks the operation; nil says that it runs.
	Stuck *lifecycle.Stuck `json:"stuck,omitempty"`
	// Node, Instance and Cordoned change the node when set.
	Node     lifecycle.NodeState     `json:"node,omitempty"`
	Instance lifecycle.InstanceState `json:"instance,omitempty"`
	Cordoned *bool                   `json:"cordoned,omitempty"`
	Facts    *inventory.Facts        `json:"facts,omitempty"`
	// Decision is the operator's decision that led here, for the audit.
	Decision *lifecycle.ResolveRequest `json:"decision,omitempty"`
}

// Finish ends an operation.
type Finish struct {
	// RunID is the run that says so, as Advance has it.
	RunID string `json:"-"`
	// Document is the operation's final status, as in Advance.
	Document *lifecycle.OperationStatus `json:"document,omitempty"`
	// Status is completed, canceled or failed.
	Status lifecycle.OperationState `json:"status"`
	// Node is the node's state from now on; empty leaves it.
	Node lifecycle.NodeState `json:"node,omitempty"`
	// Instance is the instance's state from now on; empty leaves it.
	Instance lifecycle.InstanceState `json:"instance,omitempty"`
	// DenyIdentity voids the node's certificates and tokens in the same
	// transaction and ends its open polls (remove).
	DenyIdentity bool `json:"deny_identity,omitempty"`
	// VoidTokens voids the node's live enrolment tokens and unused certificates
	// (a cancelled enrolment).
	VoidTokens bool   `json:"void_tokens,omitempty"`
	Outcome    string `json:"outcome"`
}

// Enrollment is how far a node's enrolment has come, for its current
// incarnation.
type Enrollment struct {
	// Incarnation is the current one: what the fields below speak of. The claim
	// of a reissued token starts the next.
	Incarnation int64 `json:"incarnation,omitempty"`
	// ReissueIssued is true while a token of PurposeReissue, or a reference to a
	// bundle with one, is live and not claimed.
	ReissueIssued bool `json:"reissue_issued,omitempty"`

	BundleIssued bool `json:"bundle_issued"`
	TokenClaimed bool `json:"token_claimed"`
	// Polled is true once the agent made an authenticated poll.
	Polled bool `json:"polled"`
	// Removed is true once the node is removed: none of the above will change.
	Removed bool `json:"removed,omitempty"`
}
