package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// admitReissueClaim checks that a run may claim a reissue.
func admitReissueClaim(ctx context.Context, tx *tx, r activities.ClaimRequest, n sqlc.LockNodeRow) (lifecycle.Plan, error) {
	open, err := tx.OpenOperations(ctx, n.NodeID)
	if err != nil {
		return lifecycle.Plan{}, err
	}
	for _, op := range open {
		if op.OpSeq != 0 {
			continue
		}
		if err := checkNewest(r, op.OperationID, op.RunStartedAt); err != nil {
			return lifecycle.Plan{}, err
		}
	}
	return admitReissue(n, open)
}

// admitReissue checks that the node's enrollment may be reissued: in the states of
// the table, and not beside an open operation that conflicts with it.
func admitReissue(n sqlc.LockNodeRow, open []sqlc.OpenOperationsRow) (lifecycle.Plan, error) {
	plan, _ := lifecycle.PlanOf(lifecycle.ActionReissueEnrollment, lifecycle.Options{})
	_, err := lifecycle.CheckStart(plan.Action, n.State)
	for _, op := range open {
		if plan.ConflictsWith(op.Action) && (err == nil || op.Status == lifecycle.OperationAbandoned) {
			return plan, errInProgress(n, op)
		}
	}
	return plan, err
}

func errInProgress(n sqlc.LockNodeRow, op sqlc.OpenOperationsRow) error {
	err := schema.NewError(schema.KindOperationInProgress, "node %s has an open %s: operation %s",
		n.Host, op.Action, op.OperationID).WithReason(string(op.Action) + "_open")
	if op.Status == lifecycle.OperationAbandoned {
		return err.WithNext(lifecycle.RehydrateCommand(n.Host))
	}
	return err.WithNext(lifecycle.OpCommand("show", op.Action, n.Host))
}

// endReissue ends the node's open reissue as failed, because its token is void. The outcome is why,
// followed by the command that issues a new one. The run of the operation ends with its next write.
func endReissue(ctx context.Context, tx *tx, n sqlc.LockNodeRow, why string) error {
	open, err := tx.OpenOperations(ctx, n.NodeID)
	for _, op := range open {
		if op.Action != lifecycle.ActionReissueEnrollment {
			continue
		}
		outcome := why + "gpuaas node reissue-enrollment " + n.Host
		if op.Document != nil {
			endPhase(&op.Document.Operation, outcome, n.Now.UTC())
			op.Document.Operation.End(lifecycle.OperationFailed, outcome, n.Now.UTC())
			op.Document.Node = nodeRef(n)
		}
		if err := tx.FinishOperation(ctx, sqlc.FinishOperationParams{OperationID: op.OperationID, OpSeq: op.OpSeq,
			Status: lifecycle.OperationFailed, Outcome: outcome, Document: op.Document}); err != nil {
			return err
		}
		f := activities.Fence{NodeID: n.NodeID, OperationID: op.OperationID, Actor: systemActor, CorrelationID: op.CorrelationID}
		tx.note(operationEvent(f, audit.ActionName(op.Action), audit.Failed, "token_voided", map[string]string{"outcome": outcome}))
	}
	return err
}

// issueReissue voids the tokens that the new one replaces and audits them. The
// node's identity and its recovery token stay valid until the new token is claimed,
// so an unused reissue disconnects no node.
func issueReissue(ctx context.Context, tx *tx, t trust.MintedToken, n sqlc.LockNodeRow, e audit.Event) error {
	voided, err := voidBundles(ctx, tx, t.NodeID)
	if err != nil {
		return err
	}
	e.Detail["voided"] = voided
	tx.note(e)
	next := n.Incarnation + 1
	if err := tx.insertToken(ctx, t, next); err != nil {
		return err
	}
	return tx.signalEnrollment(ctx, t.NodeID, next, true, lifecycle.EventBundleIssued)
}

// IssueForTask issues a reissue token for the node that runs a task, as
// nodeapi.Tasks specifies.
func (s *Tasks) IssueForTask(ctx context.Context, c nodeapi.Caller, taskID string, m trust.MintedToken, life time.Duration) (time.Time, error) {
	return write(ctx, s.db, "issuing a token for task "+taskID, func(ctx context.Context, tx *tx) (expires time.Time, err error) {
		t, err := tx.lockTask(ctx, taskID, &c.NodeID)
		if err != nil {
			return expires, err
		}
		leased := t.Status == task.Dispatched || t.Status == task.Running
		if t.Type != task.NewIdentity || t.Incarnation != c.Incarnation || !leased {
			return expires, errLeaseLost(taskID)
		}
		node, err := tx.lockNode(ctx, c.NodeID)
		if err != nil {
			return expires, err
		}
		m.ExpiresAt = node.Now.Add(life).UTC().Truncate(time.Second)
		e := nodeEvent(c.NodeID, audit.TokenIssued, audit.Succeeded, map[string]string{"token_id": m.TokenID, "purpose": string(m.Purpose),
			"from": string(node.State), "task_id": taskID})
		e.CorrelationID, e.OperationID = t.CorrelationID, t.OperationID
		if err := admitToken(ctx, tx, m.Purpose, node); err != nil {
			return expires, refuse(err, e)
		}
		return m.ExpiresAt, issueReissue(ctx, tx, m, node, e)
	})
}

// beginIncarnation voids the node's identity and starts the next incarnation in the
// same state: certificates and recovery tokens are void, a lock is cleared and open
// polls end. Tasks of the older incarnation are not dispatched again; their
// operations void them.
func beginIncarnation(ctx context.Context, tx *tx, want int64, n sqlc.LockNodeRow, detail map[string]string) error {
	if _, err := tx.VoidTokens(ctx, n.NodeID, purposes(trust.PurposeEnroll, trust.PurposeRecover)); err != nil {
		return err
	}
	ended, err := tx.RetireCertificates(ctx, n.NodeID, []string{slotPending, slotCurrent})
	if err != nil {
		return err
	}
	slices.Sort(ended)
	detail["voided_serials"] = strings.Join(ended, " ")
	if n.Locked {
		detail["unlocked"] = "yes"
	}
	got, err := tx.NextIncarnation(ctx, n.NodeID)
	if err == nil && got != want {
		return schema.NewError(schema.KindInternal, "the token is for incarnation %d of node %s, which is at %d", want, n.NodeID, got)
	}
	if err != nil {
		return err
	}
	tx.wakeNode(n.NodeID)
	return nil
}
