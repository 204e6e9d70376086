package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// admitReissue says whether the node's enrolment may be reissued as it is: in
// the states of the table, and not while an operation drains or removes it, as a
// retirement may: the claim would take the node's open tasks from it.
func (u *unit) admitReissue(ctx context.Context, n sqlc.LockNodeRow) error {
	if _, err := lifecycle.CheckMove(lifecycle.ActionReissueEnrollment, n.State); err != nil {
		return err
	}
	open, err := u.OpenOperations(ctx, n.NodeID)
	if err != nil {
		return err
	}
	for _, op := range open {
		switch op.Action {
		case lifecycle.ActionDrain, lifecycle.ActionRetire, lifecycle.ActionRemove:
			return errInProgress(n, op)
		}
	}
	return nil
}

func errInProgress(n sqlc.LockNodeRow, op sqlc.OpenOperationsRow) error {
	return schema.NewError(schema.KindOperationInProgress, "node %s has an open %s: operation %s",
		n.Host, op.Action, op.OperationID).WithReason(string(op.Action) + "_open").
		WithNext(lifecycle.OpCommand("show", op.Action, n.Host))
}

// issueReissue voids the tokens that the new one takes the place of and says
// which. The node's identity and its recovery token stay good until the new
// token is claimed: a reissue that nobody takes up cuts nobody off.
func (u *unit) issueReissue(ctx context.Context, t trust.MintedToken, n sqlc.LockNodeRow, e audit.Event) error {
	voided, err := u.VoidTokens(ctx, t.NodeID, purposes(trust.PurposeEnroll, trust.PurposeReissue, purposeFetch))
	if err != nil {
		return err
	}
	names := make([]string, len(voided))
	for i, v := range voided {
		names[i] = fmt.Sprintf("%s:%s", v.Purpose, v.TokenID)
	}
	slices.Sort(names)
	e.Detail["voided"] = strings.Join(names, " ")
	u.note(e)
	next := n.Incarnation + 1
	if err := u.insertToken(ctx, t, next); err != nil {
		return err
	}
	return u.tellEnrolment(ctx, t.NodeID, next, true, lifecycle.EventBundleIssued)
}

// beginIncarnation ends the node's identity and starts the next one under the
// same state: certificates and recovery tokens of the older are void, a lock is
// cleared and open polls end. Tasks of the older incarnation are offered no more
// and stay their operations' to void.
func (u *unit) beginIncarnation(ctx context.Context, want int64, n sqlc.LockNodeRow, detail map[string]string) error {
	if _, err := u.VoidTokens(ctx, n.NodeID, purposes(trust.PurposeEnroll, trust.PurposeRecover)); err != nil {
		return err
	}
	ended, err := u.RetireCertificates(ctx, n.NodeID, []string{slotPending, slotCurrent})
	if err != nil {
		return err
	}
	slices.Sort(ended)
	detail["voided_serials"] = strings.Join(ended, " ")
	if n.Locked {
		detail["unlocked"] = "yes"
	}
	got, err := u.NextIncarnation(ctx, n.NodeID)
	if err == nil && got != want {
		return schema.Errorf(schema.KindInternal, "the token is for incarnation %d of node %s, which is at %d", want, n.NodeID, got)
	}
	if err != nil {
		return err
	}
	return u.later.Notify(ctx, channelNode, n.NodeID)
}

// takeReissue stores a reissue's operation. It does not hold the node: its fence
// has no op_seq and covers nothing but its own row.
func (u *unit) takeReissue(ctx context.Context, r activities.ClaimRequest, n sqlc.LockNodeRow, instance lifecycle.InstanceState) (activities.Claim, error) {
	if err := u.supersedeReissue(ctx, r); err != nil {
		return activities.Claim{}, err
	}
	open, err := u.OpenOperations(ctx, n.NodeID)
	if err != nil {
		return activities.Claim{}, err
	}
	for _, op := range open {
		if op.Action == lifecycle.ActionReissueEnrollment {
			return activities.Claim{}, refuse(errInProgress(n, op), claimEvent(r))
		}
	}
	return u.insertOperation(ctx, r, n, n.State, instance, 0)
}

// tellRemoved tells an open reissue that its node is removed.
func (u *unit) tellRemoved(ctx context.Context, nodeID string) error {
	open, err := u.OpenOperations(ctx, nodeID)
	if err != nil {
		return err
	}
	for _, op := range open {
		if op.Action == lifecycle.ActionReissueEnrollment {
			node, err := u.GetNode(ctx, nodeID)
			if err != nil {
				return err
			}
			return u.tell(ctx, lifecycle.ReissueWorkflowID(node.Host, nodeID), nodeID, 0, lifecycle.EventNodeRemoved)
		}
	}
	return nil
}

// supersedeReissue ends what a dead run of the same workflow left open: Temporal
// runs one at a time, so the run that claims is the only one alive.
func (u *unit) supersedeReissue(ctx context.Context, r activities.ClaimRequest) error {
	ended, err := u.SupersedeReissue(ctx, r.NodeID, r.WorkflowID, "superseded by operation "+r.OperationID)
	for _, op := range ended {
		u.noteSuperseded(r.NodeID, op.OperationID, op.Action, op.CorrelationID, r.OperationID)
	}
	return err
}

// endReissue ends the row of a reissue, and with VoidTokens what the reissue
// made and nobody used yet. Nothing else of the node is touched.
func (u *unit) endReissue(ctx context.Context, f activities.Fence, op sqlc.GetOperationRow, e activities.Finish) error {
	if err := u.FinishOperation(ctx, sqlc.FinishOperationParams{
		OperationID: f.OperationID, OpSeq: f.OpSeq, Status: e.Status, Outcome: e.Outcome,
	}); err != nil {
		return err
	}
	u.note(event(f, audit.ActionName(op.Action), finishResult(e.Status), "", map[string]string{"outcome": e.Outcome}))
	if !e.VoidTokens {
		return nil
	}
	if err := u.ReplaceUnusedOfReissue(ctx, f.NodeID); err != nil {
		return err
	}
	if _, err := u.VoidTokens(ctx, f.NodeID, purposes(trust.PurposeReissue, purposeFetch)); err != nil {
		return err
	}
	return u.VoidRecoveryTokens(ctx, f.NodeID)
}
