package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Claim takes the node for an operation, as activities.Records says. An
// operation that a dead run left open is ended and its tasks are voided: the
// new op_seq fences it anyway.
func (s *Store) Claim(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	var c activities.Claim
	err := s.write(ctx, fmt.Sprintf("claiming node %s to %s it", r.NodeID, r.Action),
		func(ctx context.Context, u *unit) (err error) {
			c, err = s.claim(ctx, u, r)
			return err
		})
	return c, err
}

func (s *Store) claim(ctx context.Context, u *unit, r activities.ClaimRequest) (activities.Claim, error) {
	event := claimEvent(r)
	if !schema.IsID(r.OperationID) {
		return activities.Claim{}, schema.Errorf(schema.KindInvalidRequest, "malformed operation id %q", r.OperationID)
	}
	node, err := u.lockNode(ctx, r.NodeID)
	if schema.KindOf(err) == schema.KindNotFound {
		event.Stream = audit.SystemStream
		return activities.Claim{}, refuse(err, event)
	}
	if err != nil {
		return activities.Claim{}, err
	}
	op, err := u.GetOperation(ctx, r.OperationID)
	switch {
	case err == nil && op.RunID == r.RunID && op.NodeID == r.NodeID:
		return op.Claim, nil
	case err == nil:
		return activities.Claim{}, refuse(schema.NewError(schema.KindInvalidRequest,
			"operation id %s was used by another run", r.OperationID).WithReason("duplicate_operation"), event)
	case !notFound(err):
		return activities.Claim{}, err
	}
	instance, err := u.liveInstance(ctx, r.NodeID)
	if err != nil {
		return activities.Claim{}, err
	}
	move, err := s.admit(ctx, u, r, node, instance)
	if err != nil {
		event.Detail["state"] = string(node.State)
		return activities.Claim{}, refuse(err, event)
	}
	if r.Action == lifecycle.ActionReissueEnrollment {
		return u.takeReissue(ctx, r, node, instance)
	}
	return u.take(ctx, r, node, move, instance)
}

// admit says whether the action may start on the node as it is.
func (s *Store) admit(ctx context.Context, u *unit, r activities.ClaimRequest, n sqlc.LockNodeRow, instance lifecycle.InstanceState,
) (lifecycle.Plan, error) {
	if err := lifecycle.CheckWorkflowID(r.Action, n.Host, n.NodeID, r.WorkflowID); err != nil {
		return lifecycle.Plan{}, err
	}
	move, err := lifecycle.CheckMove(r.Action, n.State)
	if err != nil {
		return move, err
	}
	if r.Action == lifecycle.ActionReissueEnrollment {
		return move, u.admitReissue(ctx, n)
	}
	if !move.Holds {
		return move, schema.NewError(schema.KindInvalidRequest, "%s is not an operation", r.Action).
			WithReason("not_an_operation")
	}
	switch r.Action {
	case lifecycle.ActionProvision:
		return move, s.admitProvision(n, instance)
	case lifecycle.ActionRetire:
		return move, admitRetire(n, r.Options)
	}
	return move, nil
}

func (s *Store) admitProvision(n sqlc.LockNodeRow, instance lifecycle.InstanceState) error {
	if instance == lifecycle.InstanceRunning {
		return schema.NewError(schema.KindInvalidRequest, "node %s is provisioned already: its instance is running", n.Host).
			WithReason("already_provisioned")
	}
	if n.State == lifecycle.NodeRegistered && !slices.Contains(s.creating, n.OnboardingMode) {
		return schema.NewError(schema.KindInvalidRequest,
			"node %s is not enrolled, and its provider %q makes no machines", n.Host, n.OnboardingMode).
			WithReason("not_enrolled").WithNext("gpuaas node enroll " + n.Host)
	}
	return nil
}

func admitRetire(n sqlc.LockNodeRow, o lifecycle.Options) error {
	if o.Drain || len(n.Workloads) == 0 {
		return nil
	}
	names := wire.NodeView{Workloads: n.Workloads}.Blockers()
	return schema.NewError(schema.KindNodeInUse, "node %s holds work: %s", n.Host, strings.Join(names, ", ")).
		WithNext("gpuaas node retire " + n.Host + " --drain")
}

// take hands the node to the operation.
func (u *unit) take(ctx context.Context, r activities.ClaimRequest, n sqlc.LockNodeRow, move lifecycle.Plan,
	instance lifecycle.InstanceState,
) (activities.Claim, error) {
	state := n.State
	if move.Enter != "" {
		state = move.Enter
	}
	if err := u.supersede(ctx, n, r.OperationID); err != nil {
		return activities.Claim{}, err
	}
	c, err := u.insertOperation(ctx, r, n, state, instance, n.OpSeq+1)
	if err != nil {
		return c, err
	}
	return c, one(c.Fence)(u.ClaimNode(ctx, sqlc.ClaimNodeParams{
		NodeID: n.NodeID, OpSeq: n.OpSeq, OperationID: &r.OperationID, State: state,
	}))
}

// insertOperation stores the operation with its claim and its audit row.
func (u *unit) insertOperation(ctx context.Context, r activities.ClaimRequest, n sqlc.LockNodeRow, state lifecycle.NodeState,
	instance lifecycle.InstanceState, opSeq int64,
) (activities.Claim, error) {
	sku, err := u.GetSKU(ctx, n.SKU)
	if err != nil {
		return activities.Claim{}, err
	}
	c := activities.Claim{
		Fence: activities.Fence{NodeID: n.NodeID, OperationID: r.OperationID, OpSeq: opSeq,
			Actor: r.Actor, CorrelationID: r.CorrelationID},
		Prior: n.State, State: state, Host: n.Host, SKU: inventory.SKU(sku), GPUsTotal: n.GPUsTotal,
		Region: n.RegionCode, Provider: n.OnboardingMode, Incarnation: n.Incarnation, Cordoned: n.Cordoned,
		Instance: instance, ClaimedAt: n.Now,
	}
	event := claimEvent(r)
	event.Result, event.Reason = audit.Accepted, r.Reason
	event.Detail = map[string]string{"from": string(n.State), "to": string(state), "op_seq": strconv.FormatInt(opSeq, 10)}
	u.note(event)
	return c, u.InsertOperation(ctx, sqlc.InsertOperationParams{
		OperationID: r.OperationID, NodeID: n.NodeID, OpSeq: opSeq, Action: r.Action, Actor: r.Actor,
		Reason: r.Reason, CorrelationID: r.CorrelationID, WorkflowID: r.WorkflowID, RunID: r.RunID,
		Claim: c, StartedAt: n.Now,
	})
}

// supersede ends what an earlier run left open on the node.
func (u *unit) supersede(ctx context.Context, n sqlc.LockNodeRow, by string) error {
	ended, err := u.SupersedeOperations(ctx, n.NodeID, "superseded by operation "+by)
	if err != nil {
		return err
	}
	for _, op := range ended {
		u.noteSuperseded(n.NodeID, op.OperationID, op.Action, op.CorrelationID, by)
	}
	return u.voidTasks(ctx, n.NodeID, nil, systemActor)
}

func (u *unit) noteSuperseded(nodeID, operationID string, a lifecycle.Action, correlationID, by string) {
	u.note(audit.Event{
		Stream: nodeID, Actor: systemActor, Action: audit.ActionName(a), Target: nodeID,
		Result: audit.Failed, Reason: "superseded", CorrelationID: correlationID,
		OperationID: operationID, Detail: map[string]string{"by": by},
	})
}

// liveInstance returns the state of the node's instance, InstanceNone when it
// has none.
func (u *unit) liveInstance(ctx context.Context, nodeID string) (lifecycle.InstanceState, error) {
	i, err := u.LiveInstance(ctx, nodeID)
	if notFound(err) {
		return lifecycle.InstanceNone, nil
	}
	return i.State, err
}

func claimEvent(r activities.ClaimRequest) audit.Event {
	return audit.Event{
		Stream: r.NodeID, Actor: r.Actor, Action: audit.ActionName(r.Action), Target: r.NodeID,
		CorrelationID: r.CorrelationID, OperationID: r.OperationID,
		Detail: map[string]string{"asked": r.Reason},
	}
}
