package storetest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// Boot implements activities.Repairs.
func (s *repairRecords) Boot(_ context.Context, nodeID string) (activities.NodeBoot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[nodeID]
	if !ok {
		return activities.NodeBoot{}, errNoNode(nodeID)
	}
	b := activities.NodeBoot{BootID: n.BootID, Incarnation: n.Incarnation, Age: -1}
	if !n.HeartbeatAt.IsZero() {
		b.Age, b.Uptime = s.Now().Sub(n.HeartbeatAt), max(0, n.HeartbeatAt.Sub(n.BootedAt))
	}
	return b, nil
}

// Conditions implements activities.Repairs.
func (s *repairRecords) Conditions(_ context.Context, nodeID string) ([]health.Condition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[nodeID]
	if !ok {
		return nil, errNoNode(nodeID)
	}
	return slices.Clone(n.Conditions), nil
}

// RecordAttempt implements activities.Repairs.
func (s *repairRecords) RecordAttempt(_ context.Context, f activities.Fence, a recovery.Attempt) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return "", err
	}
	i := slices.IndexFunc(s.attempts, func(o recovery.Attempt) bool { return o.OperationID == a.OperationID && o.Rung == a.Rung })
	if i < 0 {
		s.attempts = append(s.attempts, a)
		return a.BootBefore, nil
	}
	a.BootBefore = cmp.Or(s.attempts[i].BootBefore, a.BootBefore)
	if s.attempts[i].Outcome == "" || a.Outcome != "" {
		s.attempts[i] = a
	}
	return a.BootBefore, nil
}

// BeginReset implements activities.Repairs.
func (s *repairRecords) BeginReset(_ context.Context, f activities.Fence, step string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return false, err
	}
	if lifecycle.IsUndo(s.ops[f.OperationID].Phase) {
		return false, errUndoBegan(f)
	}
	key := f.OperationID + "/" + step
	began := !s.resets[key]
	s.resets[key] = true
	return began, nil
}

// ForgetReset implements activities.Repairs.
func (s *repairRecords) ForgetReset(_ context.Context, f activities.Fence, step string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, _, err := s.held(f); err != nil {
		return err
	}
	delete(s.resets, f.OperationID+"/"+step)
	return nil
}

// ReplaceInstance implements activities.Repairs.
func (s *repairRecords) ReplaceInstance(_ context.Context, f activities.Fence, instanceID string) (lifecycle.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return lifecycle.Instance{}, err
	}
	n, op := s.nodes[f.NodeID], s.ops[f.OperationID]
	switch {
	case lifecycle.IsUndo(op.Phase):
		return lifecycle.Instance{}, errUndoBegan(f)
	case n.InstanceID != instanceID && n.Instance.Live():
		return instanceOf(n), nil
	case len(s.openResources(n.ID)) > 0 && !(activities.Finish{Document: op.Document}).TeardownForced():
		return instanceOf(n), schema.NewError(schema.KindInvalidRequest, "the ledger of node %s has open entries", n.ID).WithReason("resources_open")
	}
	s.endMachine(n)
	n.Instance, n.InstanceID, n.State = lifecycle.InstancePending, schema.NewID(), lifecycle.NodeRegistered
	s.note(f, audit.InstanceChanged, n.ID, audit.Succeeded, "", "from", instanceID, "to", n.InstanceID, "phase", lifecycle.PhaseReplace)
	return instanceOf(n), nil
}

func instanceOf(n *node) lifecycle.Instance {
	return lifecycle.Instance{InstanceID: n.InstanceID, Provider: n.Provider, State: n.Instance}
}

// KeepEvidence implements activities.Repairs.
func (s *repairRecords) KeepEvidence(_ context.Context, f activities.Fence, _ recovery.Fault, _ []recovery.Attempt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holding(f); err != nil {
		return err
	}
	s.evidence[f.OperationID] = true
	return nil
}

// Attempts returns the recorded rungs of the operation's repair.
func (s *repairRecords) Attempts(operationID string) []recovery.Attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.attempts), func(a recovery.Attempt) bool { return a.OperationID != operationID })
}

// Boots gives the node another boot at a time.
func (s *repairRecords) Boots(nodeID string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[nodeID]
	n.BootID, n.BootedAt = schema.NewID(), at
}
