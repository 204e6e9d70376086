package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Claim claims the node for an operation, as activities.Records specifies. It ends
// an operation that a dead run left open and voids its tasks; the new op_seq fences
// that run.
func (s *Operations) Claim(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	return write(ctx, s.db, fmt.Sprintf("claiming node %s for %s", r.NodeID, r.Action),
		func(ctx context.Context, tx *tx) (activities.Claim, error) { return s.claim(ctx, tx, r) })
}

func (s *Operations) claim(ctx context.Context, tx *tx, r activities.ClaimRequest) (activities.Claim, error) {
	event := claimEvent(r)
	if !schema.IsID(r.OperationID) {
		return activities.Claim{}, schema.NewError(schema.KindInvalidRequest, "malformed operation id %q", r.OperationID)
	}
	node, err := tx.lockNode(ctx, r.NodeID)
	if schema.KindOf(err) == schema.KindNotFound {
		event.Stream = audit.SystemStream
		return activities.Claim{}, refuse(err, event)
	}
	if err != nil {
		return activities.Claim{}, err
	}
	op, err := tx.GetOperation(ctx, r.OperationID)
	switch {
	case err == nil && op.RunID == r.RunID && op.NodeID == r.NodeID:
		return op.Claim, nil
	case err == nil:
		return activities.Claim{}, refuse(schema.NewError(schema.KindInvalidRequest,
			"operation id %s is in use by another run", r.OperationID).WithReason("duplicate_operation"), event)
	case !postgres.NotFound(err):
		return activities.Claim{}, err
	}
	plan, err := s.admit(ctx, tx, r, node)
	if err != nil {
		event.Detail["state"] = string(node.State)
		return activities.Claim{}, refuse(err, event)
	}
	if r.Action == lifecycle.ActionReissueEnrollment {
		return acceptReissue(ctx, tx, r, node)
	}
	return acceptClaim(ctx, tx, r, node, plan)
}

// admit checks that the action may start on the node as it is now.
func (s *Operations) admit(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow) (lifecycle.Plan, error) {
	if err := lifecycle.CheckWorkflowID(r.Action, n.Host, n.NodeID, r.WorkflowID); err != nil {
		return lifecycle.Plan{}, err
	}
	c := lifecycle.Candidate{Host: n.Host, State: n.State, Provider: n.OnboardingMode, Creates: slices.Contains(s.creating, n.OnboardingMode),
		Workloads: wire.NodeView{Workloads: n.Workloads}.Blockers(), Now: n.Now}
	var err error
	switch r.Action {
	case lifecycle.ActionProvision:
		c.Instance, err = tx.liveInstance(ctx, n.NodeID)
	case lifecycle.ActionRemove:
		c.HeartbeatAt, err = tx.LastHeartbeat(ctx, n.NodeID)
	}
	if err != nil {
		return lifecycle.Plan{}, err
	}
	plan, err := c.Admit(r.Action, r.Options)
	switch {
	case err != nil:
		return plan, err
	case r.Action == lifecycle.ActionReissueEnrollment:
		return plan, admitReissue(ctx, tx, n)
	case !plan.Holds:
		return plan, schema.NewError(schema.KindInvalidRequest, "%s is not an operation", r.Action).
			WithReason("not_an_operation")
	}
	return plan, nil
}

// acceptClaim stores the operation and assigns the node to it.
func acceptClaim(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow, plan lifecycle.Plan) (activities.Claim, error) {
	state := n.State
	if plan.Enter != "" {
		state = plan.Enter
	}
	if err := supersede(ctx, tx, n, r.OperationID); err != nil {
		return activities.Claim{}, err
	}
	c, err := insertOperation(ctx, tx, r, n, state, n.OpSeq+1)
	if err != nil {
		return c, err
	}
	return c, tx.ClaimNode(ctx, sqlc.ClaimNodeParams{
		NodeID: n.NodeID, OpSeq: n.OpSeq, OperationID: &r.OperationID, State: state,
	})
}

// insertOperation stores the operation with its claim and its audit row. state is
// the node's after the claim; opSeq is 0 if the operation does not hold the node.
func insertOperation(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow, state lifecycle.NodeState, opSeq int64,
) (activities.Claim, error) {
	sku, err := tx.GetSKU(ctx, n.SKU)
	if err != nil {
		return activities.Claim{}, err
	}
	c := activities.Claim{
		Fence: activities.Fence{NodeID: n.NodeID, OperationID: r.OperationID, OpSeq: opSeq,
			Actor: r.Actor, Via: r.Via, CorrelationID: r.CorrelationID},
		Prior: n.State, State: state, Host: n.Host, SKU: inventory.SKU(sku), GPUsTotal: n.GPUsTotal,
		StartedAt: n.Now.UTC(), Provider: n.OnboardingMode, Incarnation: n.Incarnation, Cordoned: n.Cordoned,
	}
	event := claimEvent(r)
	event.Result, event.Reason = audit.Accepted, r.Reason
	event.Detail = map[string]string{"from": string(n.State), "to": string(state), "op_seq": strconv.FormatInt(opSeq, 10)}
	tx.note(event)
	p := sqlc.InsertOperationParams{
		OperationID: r.OperationID, NodeID: n.NodeID, OpSeq: opSeq, Action: r.Action, Status: lifecycle.OperationAccepted,
		Document: r.Document, Actor: r.Actor, Reason: r.Reason, CorrelationID: r.CorrelationID, WorkflowID: r.WorkflowID,
		RunID: r.RunID, Claim: c, StartedAt: n.Now, Via: r.Via,
	}
	if plan, ok := lifecycle.PlanOf(r.Action, r.Options); ok && r.Document != nil {
		plan.Begin(&r.Document.Operation, n.Now.UTC())
		p.Status, p.Phase = r.Document.Operation.Status, plan.Phases[0].Name
	}
	return c, tx.InsertOperation(ctx, p)
}

// supersede ends the operation that an earlier run left open on the node.
func supersede(ctx context.Context, tx *tx, n sqlc.LockNodeRow, by string) error {
	ended, err := tx.SupersedeOperations(ctx, n.NodeID, "superseded by operation "+by)
	if err != nil {
		return err
	}
	for _, op := range ended {
		noteSuperseded(tx, n.NodeID, op.OperationID, op.Action, op.CorrelationID, by)
	}
	return tx.voidTasks(ctx, n.NodeID, nil, systemActor, "")
}

func noteSuperseded(tx *tx, nodeID, operationID string, a lifecycle.Action, correlationID, by string) {
	tx.note(audit.Event{
		Stream: nodeID, Actor: systemActor, Action: audit.ActionName(a), Target: nodeID,
		Result: audit.Failed, Reason: "superseded", CorrelationID: correlationID,
		OperationID: operationID, Detail: map[string]string{"by": by},
	})
}

// liveInstance returns the state of the node's instance, InstanceNone if it has
// none.
func (tx *tx) liveInstance(ctx context.Context, nodeID string) (lifecycle.InstanceState, error) {
	i, err := tx.LiveInstance(ctx, nodeID)
	if postgres.NotFound(err) {
		return lifecycle.InstanceNone, nil
	}
	return i.State, err
}

func claimEvent(r activities.ClaimRequest) audit.Event {
	return audit.Event{
		Stream: r.NodeID, Actor: r.Actor, Via: r.Via, Action: audit.ActionName(r.Action), Target: r.NodeID,
		CorrelationID: r.CorrelationID, OperationID: r.OperationID,
		Detail: map[string]string{"requested_reason": r.Reason},
	}
}
