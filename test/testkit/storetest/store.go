package storetest

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Store is the record of nodes, operations, tasks and resources in memory. It implements
// activities.Records, activities.Tasks, activities.Ledger and activities.Repairs, and what the node API does
// with tasks and identities.
type Store struct {
	*state
	*nodeRecords
	*taskQueue
	*resourceLedger
	*repairRecords
}

// The parts of a store share its state.
type (
	nodeRecords    struct{ *state }
	taskQueue      struct{ *state }
	resourceLedger struct{ *state }
	repairRecords  struct{ *state }
)

// state is everything that a store has.
type state struct {
	// Now is the store's clock.
	Now func() time.Time
	// SKU is the SKU of every node.
	SKU inventory.SKU
	// Creating lists the providers that create machines.
	Creating []string

	mu        sync.Mutex
	nodes     map[string]*node
	ops       map[string]*operation
	tasks     map[string]*queued
	resources []*entry
	attempts  []recovery.Attempt
	resets    map[string]bool // by operation and step
	evidence  map[string]bool // by operation
	trail     []audit.Event
	outbox    []Message
}

// NewStore returns an empty store.
func NewStore(now func() time.Time) *Store {
	s := &state{Now: now, SKU: inventory.SKU{Name: "cpu-dev", MinCPUs: 1, Active: true},
		nodes: map[string]*node{}, ops: map[string]*operation{}, tasks: map[string]*queued{}, resets: map[string]bool{}, evidence: map[string]bool{}}

	return &Store{s, &nodeRecords{s}, &taskQueue{s}, &resourceLedger{s}, &repairRecords{s}}
}

// Node is a node as stored.
type Node struct {
	ID, Host, Provider string
	State              lifecycle.NodeState
	// OpSeq is the number of the newest claim, OperationID the operation that holds the
	// node, "" if none does.
	OpSeq       int64
	OperationID string
	Incarnation int64
	GPUsTotal   int
	Instance    lifecycle.InstanceState
	InstanceID  string
	Cordoned    bool
	Workloads   []string
	HeartbeatAt time.Time // zero if there was none
	Enrolled    activities.Enrollment
	// BootID and BootedAt are those of the machine, Conditions what its agent reports.
	BootID     string
	BootedAt   time.Time
	Conditions []health.Condition
}

type node struct {
	Node
	// polledIncarnation is the newest incarnation whose agent polled.
	polledIncarnation int64
	fresh             bool   // there is an unused enrollment token
	facts             string // the step of the facts
}

// Operation is an operation as stored.
type Operation struct {
	ID, NodeID, WorkflowID, RunID string
	Action                        lifecycle.Action
	OpSeq, Step                   int64
	Phase                         string // of the newest advance
	Prior                         lifecycle.NodeState
	Status                        lifecycle.OperationState
	Stuck                         *lifecycle.Stuck
	EndedAt                       *time.Time
	Document                      *lifecycle.OperationStatus
}

type operation struct {
	Operation
	claim      activities.Claim
	runStarted time.Time
}

// Message is what the relay must deliver to Temporal: the end of a task, or an event.
type Message struct {
	TaskID     string
	Owner      task.Owner
	WorkflowID string
	Event      lifecycle.AgentEvent
}

// Register adds a node.
func (s *state) Register(host, provider string, state lifecycle.NodeState) Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &node{Node: Node{ID: schema.NewID(), Host: host, Provider: provider, State: state, Incarnation: 1,
		BootID: schema.NewID(), BootedAt: s.Now().Add(-time.Hour)}}
	if state.Enrolled() {
		n.polledIncarnation = 1
	}
	s.nodes[n.ID] = n
	return n.Node
}

// Node returns a node.
func (s *state) Node(id string) Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id].Node
	n.Workloads = slices.Clone(n.Workloads)
	return n
}

// Change changes a node outside operations: its workloads, heartbeats, registration.
func (s *state) Change(id string, change func(*Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.nodes[id].Node)
}

// Operation returns an operation; ok is false if it was never accepted.
func (s *state) Operation(id string) (o Operation, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, ok := s.ops[id]
	if ok {
		o = op.Operation
	}
	return o, ok
}

// Audit returns the audit rows in order.
func (s *state) Audit() []audit.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trail)
}

// Messages returns and removes the messages that the relay has not taken.
func (s *state) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.outbox
	s.outbox = nil
	return out
}

func (s *state) note(f activities.Fence, action, target, result, reason string, detail ...string) {
	e := audit.Event{Stream: f.NodeID, Actor: f.Actor, Action: action, Target: target, Result: result, Reason: reason,
		OperationID: f.OperationID, Detail: map[string]string{}}
	for i := 0; i+1 < len(detail); i += 2 {
		e.Detail[detail[i]] = detail[i+1]
	}
	s.trail = append(s.trail, e)
}

func (s *state) signal(workflowID string, e lifecycle.AgentEvent) {
	s.outbox = append(s.outbox, Message{WorkflowID: workflowID, Event: e})
}

// openOf returns the node's operations that have not ended, in the order of their claims.
func (s *state) openOf(nodeID string) []*operation {
	open := slices.DeleteFunc(slices.Collect(maps.Values(s.ops)), func(o *operation) bool { return o.NodeID != nodeID || o.EndedAt != nil })
	slices.SortFunc(open, func(a, b *operation) int { return int(b.OpSeq - a.OpSeq) })
	return open
}

// locked returns the node and operation of a fence. KindFenced if there is no such
// operation, or another one has claimed the node since.
func (s *state) locked(f activities.Fence) (*node, *operation, error) {
	n, ok := s.nodes[f.NodeID]
	if !ok {
		return nil, nil, errNoNode(f.NodeID)
	}
	op, ok := s.ops[f.OperationID]
	if !ok || f.OpSeq != 0 && n.OpSeq != f.OpSeq || op.OpSeq != f.OpSeq || op.NodeID != f.NodeID {
		return nil, nil, errFenced(f)
	}
	return n, op, nil
}

// held is locked for an operation that holds its node.
func (s *state) held(f activities.Fence) (*node, *operation, error) {
	if f.OpSeq == 0 {
		return nil, nil, errFenced(f)
	}
	return s.locked(f)
}

func errNoNode(id string) error { return schema.NewError(schema.KindNotFound, "no node %q", id) }

func errFenced(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "operation %s does not hold node %s", f.OperationID, f.NodeID)
}

func errEnded(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "operation %s has ended", f.OperationID).WithReason(over)
}

func errUndoBegan(f activities.Fence) error {
	return schema.NewError(schema.KindFenced, "the undo of operation %s has begun", f.OperationID).WithReason(lifecycle.ReasonUndoBegan)
}

func (s *state) void(f activities.Fence, matches func(*queued) bool) {
	for _, t := range s.tasks {
		if !t.finished && matches(t) {
			s.endTask(f, t, "voided")
		}
	}
}

// endTask ends a task without a report.
func (s *state) endTask(f activities.Fence, t *queued, why string) {
	t.Status, t.finished = task.Canceled, true
	f.OperationID = t.spec.OperationID
	s.note(f, audit.TaskFinished, t.TaskID, audit.Canceled, why)
}
