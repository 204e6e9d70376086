package storetest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Advance implements activities.Records.
func (s *nodeRecords) Advance(_ context.Context, f activities.Fence, runID string, a activities.Advance) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, op, err := s.locked(f)
	if err != nil {
		return err
	}
	if op.EndedAt != nil && !a.Applied {
		return errEnded(f)
	}
	s.noteDecision(f, op, a)
	switch {
	case op.EndedAt != nil:
		return nil
	case a.Step <= op.Step:
		return nil
	case lifecycle.AfterUndo(a.Phase, op.Phase) && !a.Cancels():
		return errUndoBegan(f)
	case lifecycle.AfterUndo(a.Phase, op.Phase):
		a.Phase = op.Phase
	}
	op.Phase = cmp.Or(a.Phase, op.Phase)
	if runID != "" {
		op.RunID = runID
	}
	op.Status, op.Step, op.Stuck = lifecycle.OperationRunning, a.Step, a.Stuck
	if a.Stuck != nil {
		op.Status = lifecycle.OperationParked
	}
	if a.Document != nil {
		op.Document = a.Document
	}
	if f.OpSeq != 0 {
		if a.FactsTask != "" {
			n.facts = a.FactsTask
		}
		if err := n.Instance.CheckMove(cmp.Or(a.Instance, n.Instance)); err != nil {
			return err
		}
		if a.Instance != "" && a.Instance != n.Instance {
			n.Instance = a.Instance
			s.note(f, audit.InstanceChanged, n.ID, audit.Succeeded, "", "to", string(a.Instance))
		}
	}
	if a.Stuck != nil && !a.Continued && !s.noted(op.ID, "park_id", a.ParkID) {
		s.note(f, audit.ActionName(op.Action), n.ID, audit.Parked, a.Stuck.Reason, "phase", a.Stuck.Phase, "park_id", a.ParkID)
	}
	return nil
}

// noteDecision writes the audit row of the advance's decision once for its ID.
func (s *nodeRecords) noteDecision(f activities.Fence, op *operation, a activities.Advance) {
	d := a.Decision
	if d == nil || d.ID == "" && a.Step <= op.Step {
		return
	}
	if s.noted(op.ID, "decision_id", d.ID) {
		return
	}
	s.note(f, audit.Decision, f.OperationID, audit.Accepted, d.Reason, "decision", string(d.Decision), "decision_id", d.ID)
}

// noted reports whether the audit has a row of the operation with the ID; none has "".
func (s *nodeRecords) noted(operationID, key, id string) bool {
	return id != "" && slices.ContainsFunc(s.trail, func(e audit.Event) bool { return e.OperationID == operationID && e.Detail[key] == id })
}

// Finish implements activities.Records.
func (s *nodeRecords) Finish(_ context.Context, f activities.Fence, _ string, e activities.Finish) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, op, err := s.locked(f)
	switch {
	case err != nil:
		return err
	case op.EndedAt != nil && op.Status == e.Status:
		return nil
	case op.EndedAt != nil:
		return errEnded(f)
	case lifecycle.IsUndo(op.Phase) && e.Status == lifecycle.OperationCompleted:
		return errUndoBegan(f)
	case !e.Status.Ended() || e.Status == lifecycle.OperationRejected:
		return schema.NewError(schema.KindInvalidRequest, "an operation cannot end as %q", e.Status)
	case (op.Action == lifecycle.ActionEnroll || op.claim.Creates && op.Action == lifecycle.ActionProvision) &&
		e.Status == lifecycle.OperationCompleted && n.polledIncarnation != n.Incarnation,
		op.Action == lifecycle.ActionRecover && e.Status == lifecycle.OperationCompleted && e.Instance == lifecycle.InstanceRunning && n.polledIncarnation != n.Incarnation:
		return schema.NewError(schema.KindInvalidRequest, "node %s has not polled with a certificate", n.ID).WithReason("not_enrolled")
	case (op.Action == lifecycle.ActionTerminate || op.Action == lifecycle.ActionRemove) && e.Status == lifecycle.OperationCompleted && !e.TeardownForced() && len(s.openResources(n.ID)) > 0:
		return schema.NewError(schema.KindInvalidRequest, "the ledger of node %s has open entries", n.ID).WithReason("resources_open")
	}
	s.end(op, e.Status, s.Now())
	if e.Document != nil {
		op.Document = e.Document
	}
	result := map[lifecycle.OperationState]string{lifecycle.OperationCompleted: audit.Succeeded, lifecycle.OperationCanceled: audit.Canceled}[e.Status]
	if result == "" {
		result = audit.Failed
	}
	s.note(f, audit.ActionName(op.Action), n.ID, result, "")
	if e.VoidTokens {
		voidTokens(n, f.OpSeq != 0)
	}
	if f.OpSeq != 0 {
		s.release(n, f, e)
	}
	if op.claim.Creates && e.Instance == lifecycle.InstanceTerminated && !e.DenyIdentity {
		s.endMachine(n)
	}
	return nil
}

// endMachine ends the identity, an open reissue and the reports of a machine that is gone.
func (s *state) endMachine(n *node) {
	for _, op := range s.openOf(n.ID) {
		if op.Action == lifecycle.ActionReissueEnrollment {
			s.end(op, lifecycle.OperationFailed, s.Now())
			s.note(fenceOf(op), audit.ActionName(op.Action), n.ID, audit.Failed, "token_voided")
		}
	}
	n.Incarnation++
	n.Enrolled, n.fresh = activities.Enrollment{}, false
	n.Workloads, n.Cordoned, n.HeartbeatAt, n.facts, n.polledIncarnation = nil, false, time.Time{}, "", 0
}

// release applies the end of an operation to the node that it held.
func (s *nodeRecords) release(n *node, f activities.Fence, e activities.Finish) {
	n.OperationID = ""
	if e.Node != "" {
		n.State = e.Node
		n.Instance = n.Instance.Follow(e.Node)
	}
	if e.Instance != "" {
		n.Instance = e.Instance
	}
	s.void(f, func(t *queued) bool {
		return t.spec.OperationID == f.OperationID || e.DenyIdentity && t.spec.NodeID == n.ID
	})
	if !e.DenyIdentity {
		return
	}
	n.Enrolled.Removed = true
	for _, op := range s.openOf(n.ID) {
		s.signal(op.WorkflowID, lifecycle.AgentEvent{Event: lifecycle.EventNodeRemoved, NodeID: n.ID, Incarnation: n.Incarnation})
	}
}

// Enrollment implements activities.Records.
func (s *nodeRecords) Enrollment(_ context.Context, nodeID string) (activities.Enrollment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[nodeID]
	if !ok {
		return activities.Enrollment{}, errNoNode(nodeID)
	}
	e := n.Enrolled
	e.Incarnation, e.Polled = n.Incarnation, n.polledIncarnation == n.Incarnation
	return e, nil
}

// Registration implements activities.Records.
func (s *nodeRecords) Registration(_ context.Context, nodeID string) (activities.Registration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[nodeID]
	if !ok {
		return activities.Registration{}, errNoNode(nodeID)
	}
	return activities.Registration{SKU: s.SKU, GPUsTotal: n.GPUsTotal}, nil
}

// HeartbeatAge implements activities.Records.
func (s *nodeRecords) HeartbeatAge(_ context.Context, nodeID string) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[nodeID]
	switch {
	case !ok:
		return 0, errNoNode(nodeID)
	case n.HeartbeatAt.IsZero():
		return -1, nil
	}
	return s.Now().Sub(n.HeartbeatAt), nil
}

// IssueBundle issues a token, of an enrollment or of a reissue, if the node's state admits
// one. The token of an enrollment begins a new incarnation if the node has polled.
func (s *nodeRecords) IssueBundle(nodeID string, reissue bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[nodeID]
	if reissue {
		if _, _, err := s.admitReissue(n); err == nil {
			n.Enrolled.ReissueIssued, n.fresh = true, false
			s.announce(n, lifecycle.EventBundleIssued, true)
		}
		return
	}
	if _, err := lifecycle.CheckStart(lifecycle.ActionEnroll, n.State); err != nil {
		return
	}
	if n.polledIncarnation == n.Incarnation {
		if op := s.ops[n.OperationID]; op != nil && op.EndedAt == nil && (op.Action == lifecycle.ActionProvision || op.Action == lifecycle.ActionRecover) {
			return
		}
		n.Incarnation++
		n.Enrolled = activities.Enrollment{}
	}
	n.Enrolled.BundleIssued, n.Enrolled.ReissueIssued, n.fresh = true, false, true
	n.State = lifecycle.NodeBootstrapIssued
	s.announce(n, lifecycle.EventBundleIssued, false)
}

// ClaimToken uses an unused token, a reissued one first, if the node's state admits it.
func (s *nodeRecords) ClaimToken(nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[nodeID]
	if n.Enrolled.ReissueIssued {
		if _, _, err := s.admitReissue(n); err == nil {
			n.Incarnation++
			n.Enrolled = activities.Enrollment{BundleIssued: true, TokenClaimed: true}
			s.announce(n, lifecycle.EventTokenClaimed, true)
		}
		return
	}
	if _, err := lifecycle.CheckStart(lifecycle.ActionEnroll, n.State); err == nil && n.fresh {
		n.Enrolled.TokenClaimed, n.State, n.fresh = true, lifecycle.NodeEnrolling, false
		s.announce(n, lifecycle.EventTokenClaimed, false)
	}
}

// Poll is the agent's first poll with the certificate that it got for its token.
func (s *nodeRecords) Poll(nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[nodeID]
	if n.Enrolled.Removed || !n.Enrolled.TokenClaimed || n.polledIncarnation == n.Incarnation {
		return
	}
	n.polledIncarnation = n.Incarnation
	s.announce(n, lifecycle.EventFirstPoll, false)
	s.announce(n, lifecycle.EventFirstPoll, true)
}

// announce signals an event of the node's identity to its enrollment or its reissue.
func (s *nodeRecords) announce(n *node, event lifecycle.AgentEventName, reissue bool) {
	for _, op := range s.openOf(n.ID) {
		if reissue == (op.Action == lifecycle.ActionReissueEnrollment) {
			s.signal(op.WorkflowID, lifecycle.AgentEvent{Event: event, NodeID: n.ID, Incarnation: n.Incarnation})
		}
	}
}
