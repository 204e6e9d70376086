package lifecycle

import (
	"strings"

	"github.com/google/uuid"

	"github.com/gpuaas/gpuaas/schema"
)

// operationSpace is the name space of the deterministic ids below. It is part
// of the wire contract: changing it detaches retries from their first attempt.
var operationSpace = uuid.MustParse("6d5c7f4e-0a1b-5c2d-9e3f-67707561617a")

// NodeWorkflowID is the workflow ID of every operation on a node, whatever its
// type. It is the node's lock: Temporal refuses a second run under it.
func NodeWorkflowID(nodeID string) string { return "node:" + nodeID }

// ReissueWorkflowID is the workflow ID of a reissue, which changes no state and
// so does not take the node's lock.
func ReissueWorkflowID(nodeID string) string { return "node:" + nodeID + ":reissue" }

// WorkflowID is the workflow ID that an action runs under: the node's lock, or
// the reissue's own.
func WorkflowID(a Action, nodeID string) string {
	if a == ActionReissueEnrollment {
		return ReissueWorkflowID(nodeID)
	}
	return NodeWorkflowID(nodeID)
}

// FleetWorkflowID is the workflow ID of work on many nodes.
func FleetWorkflowID(verb string) string { return "fleet:" + verb }

// NodeIDOfWorkflow returns the node a workflow ID belongs to; ok is false for
// an ID that is not a node's.
func NodeIDOfWorkflow(workflowID string) (nodeID string, ok bool) {
	rest, ok := strings.CutPrefix(workflowID, "node:")
	if !ok {
		return "", false
	}
	nodeID, _, _ = strings.Cut(rest, ":")
	return nodeID, schema.IsID(nodeID)
}

// OperationID returns the id of an operation: derived from the idempotency key
// when there is one, so that the same command again attaches to its own run,
// and new otherwise.
func OperationID(nodeID string, a Action, idempotencyKey string) string {
	if idempotencyKey == "" {
		return schema.NewID()
	}
	return derived("operation", nodeID, string(a), idempotencyKey)
}

// TaskID is the id of a step's node task: one task per operation and step, so
// that a repeated dispatch finds its own row.
func TaskID(operationID, step string) string { return derived("task", operationID, step) }

// ResourceID is the id of an operation's ledger entry and the idempotency key
// handed to the provider.
func ResourceID(operationID, kind string) string { return derived("resource", operationID, kind) }

func derived(parts ...string) string {
	return uuid.NewSHA1(operationSpace, []byte(strings.Join(parts, "\x00"))).String()
}
