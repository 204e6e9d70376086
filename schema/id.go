package schema

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// operationSpace is the name space of the deterministic ids below. It is part
// of the wire contract: changing it detaches retries from their first attempt.
var operationSpace = uuid.MustParse("6d5c7f4e-0a1b-5c2d-9e3f-67707561617a")

// NewID returns a new time-ordered id (UUIDv7) for a node, an operation, an
// instance or a correlation.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// IsID reports whether s has the form of an id (so a NODE argument is an id and
// not a host name).
func IsID(s string) bool { return uuid.Validate(s) == nil && len(s) == 36 }

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
	return nodeID, IsID(nodeID)
}

// OperationID returns the id of an operation: derived from the idempotency key
// when there is one, so that the same command again attaches to its own run,
// and new otherwise.
func OperationID(nodeID string, a Action, idempotencyKey string) string {
	if idempotencyKey == "" {
		return NewID()
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

// Identity is what a node certificate's URI SAN says.
type Identity struct {
	Env         string
	NodeID      string
	Incarnation int64
}

// URI returns spiffe://<env>/node/<node_id>/<incarnation>, the only subject
// name a node certificate carries.
func (i Identity) URI() string {
	return fmt.Sprintf("spiffe://%s/node/%s/%d", i.Env, i.NodeID, i.Incarnation)
}

// ParseIdentity parses a node certificate's URI SAN. Any other form is a
// KindInvalidNodeIdentity error with reason identity_mismatch.
func ParseIdentity(u *url.URL) (Identity, error) {
	bad := NewError(KindInvalidNodeIdentity, "the certificate names no node of this system").
		WithReason(ReasonIdentityMismatch)
	if u == nil || u.Scheme != "spiffe" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return Identity{}, bad
	}
	parts := strings.Split(u.Path, "/")
	if len(parts) != 4 || parts[0] != "" || parts[1] != "node" || !IsID(parts[2]) {
		return Identity{}, bad
	}
	n, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != parts[3] {
		return Identity{}, bad
	}
	return Identity{Env: u.Host, NodeID: parts[2], Incarnation: n}, nil
}
