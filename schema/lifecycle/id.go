package lifecycle

import (
	"strings"

	"github.com/google/uuid"

	"github.com/gpuaas/gpuaas/schema"
)

// operationSpace is the name space of the deterministic ids below. It is part
// of the wire contract: changing it detaches retries from their first attempt.
var operationSpace = uuid.MustParse("6d5c7f4e-0a1b-5c2d-9e3f-67707561617a")

const (
	nodePrefix    = "node:"
	reissueSuffix = ":reissue"
)

// NodeWorkflowID is the workflow ID of every action that holds the node. It is
// the node's lock: Temporal rejects a second run under the same ID.
func NodeWorkflowID(host, nodeID string) string { return nodePrefix + host + ":" + nodeID }

// ReissueWorkflowID is the workflow ID of a reissue, which does not hold the
// node.
func ReissueWorkflowID(host, nodeID string) string {
	return NodeWorkflowID(host, nodeID) + reissueSuffix
}

// RotationWorkflowID is the workflow ID of every rotation of keys: Temporal rejects a second
// run under the same ID.
const RotationWorkflowID = "fleet:rotation"

// WorkflowID is the workflow ID that an action on a node runs under.
func WorkflowID(a Action, host, nodeID string) string {
	if p, ok := PlanOf(a, Options{}); ok && !p.Holds {
		return ReissueWorkflowID(host, nodeID)
	}
	return NodeWorkflowID(host, nodeID)
}

// CheckWorkflowID rejects a run of action a whose workflow ID is not the one
// that excludes other runs on the same node: KindInvalidRequest, reason
// foreign_workflow_id. host and nodeID are those of the inventory.
func CheckWorkflowID(a Action, host, nodeID, workflowID string) error {
	if want := WorkflowID(a, host, nodeID); workflowID != want {
		return schema.NewError(schema.KindInvalidRequest, "workflow %q may not %s node %s: the action runs as workflow %s",
			workflowID, a, host, want).WithReason("foreign_workflow_id").WithNext("gpuaas node " + string(a) + " " + host)
	}
	return nil
}

// NodeID returns the id of a node that the subject registers: derived from the
// idempotency key if there is one, so that a repeat finds its own node, and new
// otherwise.
func NodeID(subject, idempotencyKey string) string {
	if idempotencyKey == "" {
		return schema.NewID()
	}
	return derived("node", subject, idempotencyKey)
}

// OperationID returns the id of an operation that the subject starts: derived from
// the idempotency key if there is one, so that a repeat finds its own operation, and
// new otherwise. The key of another subject, node or action is another key.
func OperationID(nodeID string, a Action, subject, idempotencyKey string) string {
	if idempotencyKey == "" {
		return schema.NewID()
	}
	return derived("operation", nodeID, string(a), subject, idempotencyKey)
}

// DecisionID returns the id of a subject's decision about an operation: derived
// from the idempotency key if there is one, so that a repeat is delivered once, and
// new otherwise.
func DecisionID(operationID, subject, idempotencyKey string) string {
	if idempotencyKey == "" {
		return schema.NewID()
	}
	return derived("decision", operationID, subject, idempotencyKey)
}

// TaskID is the id of a step's node task: one task per operation and step, so
// that a repeated dispatch finds its own row.
func TaskID(operationID, step string) string { return derived("task", operationID, step) }

// ResourceID is the id of an operation's ledger entry and the idempotency key
// of the provider's call.
func ResourceID(operationID, kind string) string { return derived("resource", operationID, kind) }

func derived(parts ...string) string {
	return uuid.NewSHA1(operationSpace, []byte(strings.Join(parts, "\x00"))).String()
}
