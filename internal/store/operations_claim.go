package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Claim claims the node for an operation, as activities.Records specifies. It ends
// an operation that a run left open and voids its tasks; the new op_seq fences that
// run.
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
	admitted, node, err := s.admit(ctx, tx, r, node)
	if err != nil {
		event.Detail["state"] = string(node.State)
		return activities.Claim{}, refuse(err, event)
	}
	if r.Action == lifecycle.ActionReissueEnrollment {
		return acceptReissue(ctx, tx, r, node)
	}
	return s.acceptClaim(ctx, tx, r, node, admitted)
}

// admission is what an action that may start does, and the description of the node's provider
// from which the plan is. A reissue needs no provider.
type admission struct {
	plan     lifecycle.Plan
	provider machine.Info
}

// admit checks that the action may start on the node now. It returns the node as the
// action finds it: without the operation of a run that ended.
func (s *Operations) admit(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow,
) (a admission, _ sqlc.LockNodeRow, err error) {
	if err := lifecycle.CheckWorkflowID(r.Action, n.Host, n.NodeID, r.WorkflowID); err != nil {
		return a, n, err
	}
	if by := r.StartBy(); !by.IsZero() && n.Now.After(by) {
		return a, n, errClaimExpired(r, n)
	}
	if r.Action == lifecycle.ActionReissueEnrollment {
		a.plan, err = admitReissueClaim(ctx, tx, r, n)
		return a, n, err
	}
	if n, err = withoutEndedRun(ctx, tx, r, n); err != nil {
		return a, n, err
	}
	if a, err = s.admitHolder(ctx, tx, r, n); err == nil {
		err = admitRepair(ctx, tx, r, n)
	}
	return a, n, err
}

func errClaimExpired(r activities.ClaimRequest, n sqlc.LockNodeRow) error {
	return schema.NewError(schema.KindClaimExpired, "the %s of node %s did not start by %s, as requested: it claimed the node at %s",
		r.Action, n.Host, r.StartBy().UTC().Format(time.RFC3339), n.Now.UTC().Format(time.RFC3339)).
		WithNext("gpuaas node " + string(r.Action) + " " + n.Host)
}

// withoutEndedRun returns the node without the open operation of another run. Temporal
// runs one workflow per ID at a time, so that run ended, unless it started after the
// claiming one: then the claim is late, and it is rejected with KindFenced.
func withoutEndedRun(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow) (sqlc.LockNodeRow, error) {
	if n.OperationID == nil {
		return n, nil
	}
	op, err := tx.GetOperation(ctx, *n.OperationID)
	if err != nil || op.EndedAt != nil {
		return n, err
	}
	if err := checkNewest(r, op.OperationID, op.RunStartedAt); err != nil {
		return n, err
	}
	n.State = n.State.Without(op.Claim.Prior)
	return n, nil
}

// checkNewest rejects the claim of a run that started before the one of an open
// operation. A time that is not known is not compared.
func checkNewest(r activities.ClaimRequest, operationID string, started *time.Time) error {
	if started == nil || r.RunStartedAt.IsZero() || !started.After(r.RunStartedAt) {
		return nil
	}
	return schema.NewError(schema.KindFenced, "the run of operation %s started after this one", operationID).
		WithReason("newer_run")
}

// admitHolder checks that an action that holds the node may start on it.
func (s *Operations) admitHolder(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow) (a admission, err error) {
	if a.provider, err = providerOf(ctx, tx, n.OnboardingMode); err != nil {
		return a, err
	}
	c := lifecycle.Candidate{Host: n.Host, State: n.State, Provider: a.provider,
		Workloads: wire.NodeView{Workloads: n.Workloads}.Blockers(),
		Lock:      lockOf(n.IdentityLockedAt, n.IdentityLockReason, n.IdentityLockedBy, n.IdentityLockNote)}
	if err := addMachine(ctx, tx, r.Action, n.NodeID, &c); err != nil {
		return a, err
	}
	a.plan, err = c.Admit(r.Action, r.Options)
	if err == nil && !a.plan.Holds {
		err = schema.NewError(schema.KindInvalidRequest, "%s is not an operation", r.Action).WithReason("not_an_operation")
	}
	return a, err
}

// addMachine adds the state of the node's machine to c, if it decides whether the action may start.
func addMachine(ctx context.Context, tx *tx, a lifecycle.Action, nodeID string, c *lifecycle.Candidate) error {
	if a != lifecycle.ActionProvision && a != lifecycle.ActionTerminate {
		return nil
	}
	i, err := tx.liveInstance(ctx, nodeID)
	if c.Instance = i.State; err != nil || a == lifecycle.ActionProvision {
		return err
	}
	open, err := tx.OpenResources(ctx, nodeID)
	c.OpenLedger = len(open) > 0
	return err
}

// acceptClaim stores the operation and assigns the node to it.
func (s *Operations) acceptClaim(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow, a admission) (activities.Claim, error) {
	state := n.State
	if a.plan.Enter != "" {
		state = a.plan.Enter
	}
	before, err := supersede(ctx, tx, n.NodeID, r.OperationID, true)
	if err != nil {
		return activities.Claim{}, err
	}
	if err := tx.voidTasks(ctx, n.NodeID, nil, systemActor, ""); err != nil {
		return activities.Claim{}, err
	}
	c := activities.Claim{Fence: activities.Fence{OpSeq: n.OpSeq + 1}, State: state, LeftCordon: leftCordon(before),
		Creates: a.provider.Creates, Limits: a.provider.Limits}
	detail := map[string]string{}
	switch r.Action {
	case lifecycle.ActionProvision:
		c.Instance, err = beginInstance(ctx, tx, n, r.Options.Machine, a.provider)
		detail["instance_id"] = c.Instance.InstanceID
	case lifecycle.ActionTerminate, lifecycle.ActionRecover:
		c.Instance, err = endInstance(ctx, tx, n.NodeID, state, detail)
	default:
		err = followNode(ctx, tx, n.NodeID, state, detail)
	}
	if err != nil {
		return c, err
	}
	if c, err = insertOperation(ctx, tx, r, n, c, detail); err != nil {
		return c, err
	}
	if r.Action == lifecycle.ActionRecover { // the budgets never stop a person, but count what a person started
		if err := (ledger{tx.Queries}).reserveClaimed(ctx, r.OperationID, n.NodeID); err != nil {
			return c, err
		}
	}
	return c, tx.ClaimNode(ctx, sqlc.ClaimNodeParams{
		NodeID: n.NodeID, OpSeq: n.OpSeq, OperationID: &r.OperationID, State: state,
	})
}

// acceptReissue stores a reissue's operation. It does not hold the node: its fence
// has op_seq 0 and covers only its own row.
func acceptReissue(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow) (activities.Claim, error) {
	if _, err := supersede(ctx, tx, n.NodeID, r.OperationID, false); err != nil {
		return activities.Claim{}, err
	}
	return insertOperation(ctx, tx, r, n, activities.Claim{State: n.State}, map[string]string{})
}

// insertOperation stores the operation with its claim and its audit row. It adds what it reads
// from the node to c, which has the node's state after the claim, op_seq, which is 0 if the
// operation does not hold the node, LeftCordon, Creates, Limits and Instance.
func insertOperation(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow, c activities.Claim, detail map[string]string,
) (activities.Claim, error) {
	sku, err := tx.GetSKU(ctx, n.SKU)
	if err != nil {
		return activities.Claim{}, err
	}
	c = activities.Claim{
		Fence: activities.Fence{NodeID: n.NodeID, OperationID: r.OperationID, OpSeq: c.Fence.OpSeq,
			Actor: r.Actor, Via: r.Via, CorrelationID: r.CorrelationID},
		Prior: n.State, State: c.State, Host: n.Host, SKU: inventory.SKU(sku), GPUsTotal: n.GPUsTotal,
		StartedAt: n.Now.UTC(), Provider: n.OnboardingMode, Incarnation: n.Incarnation, Cordoned: n.Cordoned, LeftCordon: c.LeftCordon, Creates: c.Creates,
		Limits: c.Limits, Instance: c.Instance,
	}
	event := claimEvent(r)
	event.Result, event.Reason = audit.Accepted, r.Reason
	detail["from"], detail["to"], detail["op_seq"] = string(n.State), string(c.State), strconv.FormatInt(c.Fence.OpSeq, 10)
	event.Detail = detail
	tx.note(event)
	p := sqlc.InsertOperationParams{
		OperationID: r.OperationID, NodeID: n.NodeID, OpSeq: c.Fence.OpSeq, Action: r.Action, Status: lifecycle.OperationAccepted,
		Document: r.Document, Actor: r.Actor, Reason: r.Reason, CorrelationID: r.CorrelationID, WorkflowID: r.WorkflowID,
		RunID: r.RunID, Claim: c, StartedAt: n.Now, Via: r.Via,
	}
	if !r.RunStartedAt.IsZero() {
		p.RunStartedAt = &r.RunStartedAt
	}
	if plan, ok := lifecycle.PlanOf(r.Action, r.Options); ok && r.Document != nil {
		plan = plan.On(c.Source()).ForGPUs(c.GPUsTotal, r.Options)
		plan.Begin(&r.Document.Operation, n.Now.UTC())
		p.Status, p.Phase = r.Document.Operation.Status, plan.Phases[0].Name
	}
	return c, tx.InsertOperation(ctx, p)
}

// supersede ends the operation that a dead run left open on the node: the one that holds
// the node, or its reissue. Temporal runs one at a time, so the claiming run is the only
// live one. It returns the claims of what it ended.
func supersede(ctx context.Context, tx *tx, nodeID, by string, holds bool) (claims []activities.Claim, err error) {
	ended, err := tx.SupersedeOperation(ctx, "superseded by operation "+by, nodeID, holds)
	for _, op := range ended {
		claims = append(claims, op.Claim)
		tx.note(audit.Event{
			Stream: nodeID, Actor: systemActor, Action: audit.ActionName(op.Action), Target: nodeID,
			Result: audit.Failed, Reason: "superseded", CorrelationID: op.CorrelationID,
			OperationID: op.OperationID, Detail: map[string]string{"by": by},
		})
	}
	return claims, err
}

// leftCordon reports whether a cordon of the node is that of a superseded operation: one that
// began on a node without a cordon.
func leftCordon(superseded []activities.Claim) bool {
	return slices.ContainsFunc(superseded, func(c activities.Claim) bool { return c.LeftCordon || !c.Cordoned })
}

func claimEvent(r activities.ClaimRequest) audit.Event {
	return audit.Event{
		Stream: r.NodeID, Actor: r.Actor, Via: r.Via, Action: audit.ActionName(r.Action), Target: r.NodeID,
		CorrelationID: r.CorrelationID, OperationID: r.OperationID,
		Detail: map[string]string{"requested_reason": r.Reason},
	}
}
