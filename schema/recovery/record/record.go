// Package record has what health recovery stores and shows: versions of the policy, decisions,
// states of nodes and the use of budgets.
package record

import (
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// Policy is a stored version of the policy. Versions are never changed; the newest one is in use.
type Policy struct {
	// Version is 0 for the default policy, which is in use until the first one is stored.
	Version int64 `json:"version"`
	// Digest is that of the policy's canonical JSON.
	Digest string        `json:"digest"`
	Mode   recovery.Mode `json:"mode"`
	Actor  string        `json:"actor,omitempty"`
	Via    string        `json:"via,omitempty"`
	Reason string        `json:"reason,omitempty"`
	At     time.Time     `json:"at,omitzero"`
	// Body is the policy. The list of versions omits it.
	Body json.RawMessage `json:"body,omitempty"`
}

// DefaultPolicy returns the policy that is in use until one is stored.
func DefaultPolicy() (Policy, error) { return Stored(recovery.Default()) }

// Stored returns a policy as it is stored, with version 0.
func Stored(p recovery.Policy) (Policy, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return Policy{}, schema.Wrap(schema.KindInternal, err, "encoding the recovery policy")
	}
	return Policy{Digest: p.Digest(), Mode: p.Mode, Body: body}, nil
}

// Decode returns the policy. A stored policy that this program
// cannot read is KindInternal with reason policy_unreadable: nothing is repaired then.
func (p Policy) Decode() (recovery.Policy, error) {
	decoded, err := recovery.DecodePolicy(p.Body)
	if err != nil {
		return decoded, schema.NewError(schema.KindInternal, "version %d of the recovery policy cannot be read: %s", p.Version, schema.AsError(err).Message).
			WithReason("policy_unreadable").WithNext("gpuaas recovery policy set --file FILE --reason TEXT")
	}
	return decoded, nil
}

// Decision is a stored decision about a node. It is stored when it differs from the node's decision
// before in its phase, fault, rung, brake or mode, so its figures are those of that time.
type Decision struct {
	DecisionID    string         `json:"decision_id"`
	At            time.Time      `json:"at"`
	NodeID        string         `json:"node_id"`
	Host          string         `json:"host"`
	SKU           string         `json:"sku"`
	Region        string         `json:"region,omitempty"`
	Rack          string         `json:"rack,omitempty"` // the node's label "rack"
	PolicyVersion int64          `json:"policy_version"`
	Mode          recovery.Mode  `json:"mode"`
	Phase         health.Phase   `json:"phase"`
	Fault         recovery.Fault `json:"fault,omitzero"`
	Rung          recovery.Rung  `json:"rung,omitempty"`
	Brake         recovery.Brake `json:"brake,omitempty"`
	Why           string         `json:"why"`
	// OperationID is the repair that the decision started.
	OperationID string `json:"operation_id,omitempty"`
}

// Decisions is a page of decisions, newest first.
type Decisions struct {
	Decisions     []Decision `json:"decisions"`
	NextPageToken string     `json:"next_page_token,omitempty"`
}

// Policies is a page of policies without their bodies, newest first.
type Policies struct {
	Policies      []Policy `json:"policies"`
	NextPageToken string   `json:"next_page_token,omitempty"`
}

// NodeState is a node that is not healthy, with its last decision. Why is the sentence of the last round.
type NodeState struct {
	Decision
	// PhaseSince is when the node entered its phase.
	PhaseSince time.Time `json:"phase_since"`
}

// Budget is the use of the budget of a scope.
type Budget struct {
	recovery.Size
	// Limit is how many nodes of the scope may be repaired at the same time, for faults that all of its
	// nodes can have; nil if no budget limits the scope.
	Limit *int `json:"limit,omitempty"`
	// Operations are those that use the budget.
	Operations []string `json:"operations,omitempty"`
}

// Status is what health recovery does now.
type Status struct {
	Policy Policy `json:"policy"`
	// PolicyFault is why the policy cannot be read: nothing is repaired then, and the limits of budgets are
	// not known.
	PolicyFault string `json:"policy_fault,omitempty"`

	Breaker recovery.BreakerState `json:"breaker"`
	// DecidedAt is when the last round was, zero if there was none.
	DecidedAt time.Time           `json:"decided_at,omitzero"`
	Incidents []recovery.Incident `json:"incidents"`
	Budgets   []Budget            `json:"budgets"` // those in use, and that of the fleet
	Nodes     []NodeState         `json:"nodes"`   // that are not healthy, by host
}

// Facts are what a replay needs beside the signals.
type Facts struct {
	At     time.Time       `json:"at"` // by the clock of the database
	Policy Policy          `json:"policy"`
	Sizes  []recovery.Size `json:"sizes"`
	// Nodes are those with a fault or a repair since the time of the request, without their attempts
	// and with the conditions that are unhealthy now.
	Nodes    []recovery.Node    `json:"nodes"`
	Attempts []recovery.Attempt `json:"attempts"`
	// Truncated is set if there are older attempts than the response has.
	Truncated bool `json:"truncated,omitempty"`
}

// SetPolicy is a request to store a policy.
type SetPolicy struct {
	Body   json.RawMessage `json:"body"`
	Reason string          `json:"reason"`
	// ExpectedDigest is that of the policy from which this one was made. If another one is in use, nothing
	// is stored. Empty means that it is not compared.
	ExpectedDigest string `json:"expected_digest,omitempty"`
	// DryRun checks the policy and stores nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// Arm is a request to arm the policy in use.
type Arm struct {
	Reason string `json:"reason"`
	// ExpectedDigest is that of the policy whose decisions were read. If another one is in use, it is not
	// armed. Empty means that it is not compared.
	ExpectedDigest string `json:"expected_digest,omitempty"`
}

// Change is a request to disarm the policy or to close the breaker.
type Change struct {
	Reason string `json:"reason"`
}
