package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Claim implements activities.Records.
func (s *nodeRecords) Claim(_ context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !schema.IsID(r.OperationID) {
		return activities.Claim{}, schema.NewError(schema.KindInvalidRequest, "malformed operation id %q", r.OperationID)
	}
	n, ok := s.nodes[r.NodeID]
	if !ok {
		return activities.Claim{}, errNoNode(r.NodeID)
	}
	f := activities.Fence{NodeID: r.NodeID, OperationID: r.OperationID, Actor: r.Actor, Via: r.Via, CorrelationID: r.CorrelationID}
	if op, known := s.ops[r.OperationID]; known {
		if op.RunID == r.RunID && op.NodeID == r.NodeID {
			return op.claim, nil
		}
		return activities.Claim{}, s.refuse(f, r, schema.NewError(schema.KindInvalidRequest,
			"operation id %s is in use by another run", r.OperationID).WithReason("duplicate_operation"))
	}
	prior, plan, err := s.admit(n, r)
	if err != nil {
		return activities.Claim{}, s.refuse(f, r, err)
	}
	return s.accept(n, r, f, prior, plan), nil
}

func (s *nodeRecords) refuse(f activities.Fence, r activities.ClaimRequest, err error) error {
	s.note(f, audit.ActionName(r.Action), r.NodeID, audit.Refused, schema.AsError(err).Reason)
	return err
}

// admit checks that the action may start. It returns the node's state without the
// operation of a run that ended.
func (s *nodeRecords) admit(n *node, r activities.ClaimRequest) (lifecycle.NodeState, lifecycle.Plan, error) {
	var none lifecycle.Plan
	if err := lifecycle.CheckWorkflowID(r.Action, n.Host, n.ID, r.WorkflowID); err != nil {
		return n.State, none, err
	}
	if by := r.StartBy(); !by.IsZero() && s.Now().After(by) {
		return n.State, none, schema.NewError(schema.KindClaimExpired, "the %s of node %s did not start by %s", r.Action, n.Host, by)
	}
	state := n.State
	reissue := r.Action == lifecycle.ActionReissueEnrollment
	for _, op := range s.openOf(n.ID) {
		if (op.OpSeq == 0) != reissue {
			continue
		}
		if !op.runStarted.IsZero() && !r.RunStartedAt.IsZero() && op.runStarted.After(r.RunStartedAt) {
			return state, none, schema.NewError(schema.KindFenced, "the run of operation %s started after this one", op.ID).WithReason("newer_run")
		}
		if !reissue {
			state = state.Without(op.claim.Prior)
		}
	}
	if reissue {
		return s.admitReissue(n)
	}
	c := lifecycle.Candidate{Host: n.Host, State: state, Provider: s.provider(n), Instance: n.Instance, Workloads: n.Workloads,
		OpenLedger: len(s.openResources(n.ID)) > 0}
	if c.Instance == lifecycle.InstanceTerminated { // no live instance
		c.Instance = lifecycle.InstanceNone
	}
	plan, err := c.Admit(r.Action, r.Options)
	if err == nil && !plan.Holds {
		err = schema.NewError(schema.KindInvalidRequest, "%s is not an operation", r.Action).WithReason("not_an_operation")
	}
	return state, plan, err
}

func (s *nodeRecords) admitReissue(n *node) (lifecycle.NodeState, lifecycle.Plan, error) {
	plan, err := lifecycle.CheckStart(lifecycle.ActionReissueEnrollment, n.State)
	for _, op := range s.openOf(n.ID) {
		if plan.ConflictsWith(op.Action) && (err == nil || op.Status == lifecycle.OperationAbandoned) {
			return n.State, plan, schema.NewError(schema.KindOperationInProgress, "node %s has an open %s", n.Host, op.Action).
				WithReason(string(op.Action) + "_open")
		}
	}
	return n.State, plan, err
}

// accept ends what an earlier run left open and stores the operation.
func (s *nodeRecords) accept(n *node, r activities.ClaimRequest, f activities.Fence, prior lifecycle.NodeState, plan lifecycle.Plan) activities.Claim {
	left := false
	for _, op := range s.openOf(n.ID) {
		if (op.OpSeq > 0) == plan.Holds {
			left = left || plan.Holds && (op.claim.LeftCordon || !op.claim.Cordoned)
			s.end(op, lifecycle.OperationFailed, s.Now())
			s.note(fenceOf(op), audit.ActionName(op.Action), n.ID, audit.Failed, "superseded")
		}
	}
	state := prior
	if plan.Holds {
		s.void(f, func(t *queued) bool { return t.spec.NodeID == n.ID })
		n.OpSeq++
		f.OpSeq = n.OpSeq
		if plan.Enter != "" {
			state = plan.Enter
		}
		n.State, n.OperationID = state, r.OperationID
	}
	before := n.Instance
	n.begin(r)
	started := s.Now().UTC()
	c := activities.Claim{Fence: f, Prior: prior, State: state, Host: n.Host, SKU: s.SKU, GPUsTotal: n.GPUsTotal, StartedAt: started,
		Provider: n.Provider, Incarnation: n.Incarnation, Cordoned: n.Cordoned, LeftCordon: left,
		Creates: s.provider(n).Creates}
	switch r.Action {
	case lifecycle.ActionProvision:
		c.Instance = lifecycle.Instance{InstanceID: n.InstanceID, Provider: n.Provider, State: n.Instance}
	case lifecycle.ActionTerminate, lifecycle.ActionRecover:
		if before.Live() { // otherwise a termination only releases what the ledger has
			c.Instance = lifecycle.Instance{InstanceID: n.InstanceID, Provider: n.Provider, State: before}
		}
	}
	op := &operation{Operation: Operation{ID: r.OperationID, NodeID: n.ID, WorkflowID: r.WorkflowID, RunID: r.RunID, Action: r.Action,
		OpSeq: f.OpSeq, Prior: prior, Status: lifecycle.OperationAccepted, Document: r.Document}, claim: c, runStarted: r.RunStartedAt}
	if r.Document != nil {
		if p, ok := lifecycle.PlanOf(r.Action, r.Options); ok {
			p = p.On(c.Source())
			p.Begin(&r.Document.Operation, started)
			op.Status = r.Document.Operation.Status
		}
	}
	s.ops[op.ID] = op
	s.note(f, audit.ActionName(r.Action), n.ID, audit.Accepted, r.Reason, "from", string(prior), "to", string(state))
	return c
}

func (s *nodeRecords) provider(n *node) machine.Info {
	return machine.Info{Name: n.Provider, Creates: slices.Contains(s.Creating, n.Provider)}
}

// begin gives the node's instance the state that follows from the claim of an operation.
func (n *node) begin(r activities.ClaimRequest) {
	switch {
	case r.Action == lifecycle.ActionProvision && n.Instance.Live():
		n.Instance = lifecycle.InstancePending
	case r.Action == lifecycle.ActionProvision:
		n.Instance, n.InstanceID = lifecycle.InstancePending, schema.NewID()
	default:
		n.Instance = n.Instance.Follow(n.State)
	}
}

func (s *state) end(op *operation, status lifecycle.OperationState, at time.Time) {
	op.Status, op.EndedAt, op.Stuck = status, &at, nil
}

func fenceOf(op *operation) activities.Fence {
	return activities.Fence{NodeID: op.NodeID, OperationID: op.ID, OpSeq: op.OpSeq, Actor: "system"}
}

// Abandon marks an open operation as one without a run, as the run watcher does. It voids
// the operation's tasks.
func (s *nodeRecords) Abandon(operationID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, ok := s.ops[operationID]
	if !ok || op.EndedAt != nil || op.Status == lifecycle.OperationAbandoned {
		return
	}
	op.Status = lifecycle.OperationAbandoned
	s.note(fenceOf(op), audit.ActionName(op.Action), op.NodeID, audit.Parked, "abandoned")
	s.void(fenceOf(op), func(t *queued) bool { return t.spec.OperationID == op.ID })
}

// Continue marks an abandoned operation as one with a run again, as the run watcher does.
// Its tasks stay void.
func (s *nodeRecords) Continue(operationID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, ok := s.ops[operationID]
	if !ok || op.Status != lifecycle.OperationAbandoned {
		return
	}
	op.Status = lifecycle.OperationRunning
	if op.Stuck != nil {
		op.Status = lifecycle.OperationParked
	}
}

// Rehydrate ends the node's abandoned operations as failed and restores the node's state.
func (s *nodeRecords) Rehydrate(nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[nodeID]
	for _, op := range s.openOf(nodeID) {
		if op.Status != lifecycle.OperationAbandoned {
			continue
		}
		if op.OpSeq > 0 {
			n.State, n.OperationID = n.State.Without(op.claim.Prior), ""
			n.Instance = n.Instance.Follow(n.State)
		}
		s.end(op, lifecycle.OperationFailed, s.Now())
		s.note(fenceOf(op), audit.ActionName(op.Action), nodeID, audit.Failed, "abandoned")
		if plan, _ := lifecycle.PlanOf(op.Action, lifecycle.Options{}); plan.CancelVoidsTokens {
			voidTokens(n, op.OpSeq > 0)
		}
	}
}

// voidTokens voids the unused tokens of an enrollment, which holds the node, or a reissue.
func voidTokens(n *node, holds bool) {
	if holds && n.polledIncarnation < n.Incarnation {
		n.Enrolled.BundleIssued, n.Enrolled.TokenClaimed = false, false
	}
	n.Enrolled.ReissueIssued, n.fresh = false, n.fresh && !holds
}
