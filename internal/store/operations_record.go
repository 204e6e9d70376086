package store

import (
	"cmp"
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Advance records progress under the fence, as activities.Records specifies. An
// operation that does not hold its node changes only its own row.
func (s *Operations) Advance(ctx context.Context, f activities.Fence, runID string, a activities.Advance) error {
	return s.db.write(ctx, "recording progress of operation "+f.OperationID, func(ctx context.Context, tx *tx) error {
		_, op, err := tx.lockOperation(ctx, f)
		if err != nil {
			return err
		}
		if err := noteDecision(ctx, tx, f, op, a); err != nil {
			return err
		}
		switch {
		case op.EndedAt != nil && a.Applied:
			return nil // its audit row is all that is left to write
		case op.EndedAt != nil:
			return errOperationEnded(f)
		case a.Step <= op.Step:
			return nil
		case lifecycle.AfterUndo(a.Phase, op.Phase) && !a.Cancels():
			return errUndoBegan(f)
		case lifecycle.AfterUndo(a.Phase, op.Phase):
			a.Phase = op.Phase
		}
		if err := tx.takeUp(ctx, op, runID); err != nil {
			return err
		}
		p := sqlc.AdvanceOperationParams{
			OperationID: op.OperationID, OpSeq: op.OpSeq, Status: lifecycle.OperationRunning,
			Phase: cmp.Or(a.Phase, op.Phase), Step: a.Step, Stuck: a.Stuck, Document: a.Document,
		}
		if a.Stuck != nil {
			p.Status = lifecycle.OperationParked
		}
		if err := tx.AdvanceOperation(ctx, p); err != nil {
			return err
		}
		if f.OpSeq != 0 {
			err = applyAdvance(ctx, tx, f, a)
		}
		if err == nil && a.Stuck != nil && !a.Continued {
			err = noteParkOnce(ctx, tx, f, op, a)
		}
		return err
	})
}

// applyAdvance changes the node and its instance, with an audit row for each
// actual change.
func applyAdvance(ctx context.Context, tx *tx, f activities.Fence, a activities.Advance) error {
	if err := setFacts(ctx, tx, f, a.FactsTask); err != nil {
		return err
	}
	was, err := setInstance(ctx, tx, f.NodeID, a.Instance)
	if err == nil && a.Instance != "" && was != a.Instance {
		tx.note(operationEvent(f, audit.InstanceChanged, audit.Succeeded, "",
			map[string]string{"from": string(was), "to": string(a.Instance), "phase": a.Phase}))
	}
	return err
}

// noteDecision writes the audit row of the advance's decision once, however late the
// advance is: a reset run applies the decisions after the reset point again. A decision
// without an ID counts as new if the advance is.
func noteDecision(ctx context.Context, tx *tx, f activities.Fence, op sqlc.GetOperationRow, a activities.Advance) error {
	d := a.Decision
	if d == nil {
		return nil
	}
	noted := a.Step <= op.Step
	if d.ID != "" {
		var err error
		noted, err = tx.DecisionNoted(ctx, f.NodeID, f.OperationID, cleanText(d.ID))
		if err != nil {
			return err
		}
	}
	if noted {
		return nil
	}
	e := operationEvent(f, audit.Decision, audit.Accepted, d.Reason,
		map[string]string{"decision": string(d.Decision), "phase": a.Phase, "decision_id": d.ID})
	e.Actor, e.Via, e.Target = d.By, d.Via, f.OperationID
	tx.note(e)
	return nil
}

// NoteStored implements adminapi.Operations.
func (s *Admin) NoteStored(ctx context.Context, r lifecycle.ResolveRequest, correlationID string) error {
	return s.db.write(ctx, "recording a decision about operation "+r.OperationID, func(ctx context.Context, tx *tx) error {
		if !schema.IsID(r.OperationID) {
			return errNoOperation(r.OperationID)
		}
		op, err := tx.GetOperation(ctx, r.OperationID)
		if err != nil {
			return orMissing(err, errNoOperation(r.OperationID))
		}
		if _, err := tx.lockNode(ctx, op.NodeID); err != nil {
			return err
		}
		f := activities.Fence{NodeID: op.NodeID, OperationID: op.OperationID, CorrelationID: correlationID}
		return noteDecision(ctx, tx, f, op, activities.Advance{Phase: op.Phase, Step: op.Step + 1, Decision: &r})
	})
}

// noteParkOnce writes the audit row of a park once for its ID, whatever the step. A park
// without an ID counts as new.
func noteParkOnce(ctx context.Context, tx *tx, f activities.Fence, op sqlc.GetOperationRow, a activities.Advance) error {
	if a.ParkID != "" {
		if noted, err := tx.ParkNoted(ctx, f.NodeID, f.OperationID, a.ParkID); err != nil || noted {
			return err
		}
	}
	notePark(tx, f, op.Action, *a.Stuck, a.ParkID)
	if a.Stuck.Reason != machine.ReasonQuota {
		return nil
	}
	return noteQuotaOnce(ctx, tx, f, op.Claim, *a.Stuck)
}

// noteQuotaOnce writes the audit row of a used-up quota once for the operation, however often it parks.
func noteQuotaOnce(ctx context.Context, tx *tx, f activities.Fence, c activities.Claim, s lifecycle.Stuck) error {
	noted, err := tx.ActionNoted(ctx, f.NodeID, audit.QuotaExceeded, f.OperationID)
	if err != nil || noted {
		return err
	}
	tx.note(operationEvent(f, audit.QuotaExceeded, audit.Refused, "", map[string]string{"provider": c.Provider, "node": c.Host,
		"region": c.Instance.Region, "phase": s.Phase, "message": s.Message}))
	return recordSignal(ctx, tx, health.Signal{Type: health.SignalQuota, Source: health.SourceProvider, NodeID: f.NodeID,
		Detail: c.Provider + ": " + s.Message})
}

func notePark(tx *tx, f activities.Fence, action lifecycle.Action, s lifecycle.Stuck, parkID string) {
	detail := map[string]string{"phase": s.Phase, "message": s.Message, "waiting_on": string(s.WaitingOn)}
	if parkID != "" {
		detail["park_id"] = parkID
	}
	tx.note(operationEvent(f, audit.ActionName(action), audit.Parked, s.Reason, detail))
}

// Finish ends the operation under the fence, as activities.Records specifies. An
// operation that does not hold its node ends its own row and, with VoidTokens, the
// credentials it issued.
func (s *Operations) Finish(ctx context.Context, f activities.Fence, runID string, e activities.Finish) error {
	return s.db.write(ctx, "ending operation "+f.OperationID, func(ctx context.Context, tx *tx) error {
		node, op, err := tx.lockOperation(ctx, f)
		if err != nil {
			return err
		}
		if op.EndedAt != nil {
			if op.Status == e.Status {
				return nil
			}
			return errOperationEnded(f)
		}
		if !e.Status.Ended() || e.Status == lifecycle.OperationRejected {
			return schema.NewError(schema.KindInvalidRequest, "an operation cannot end as %q", e.Status)
		}
		if lifecycle.IsUndo(op.Phase) && e.Status == lifecycle.OperationCompleted {
			return errUndoBegan(f)
		}
		if err := tx.takeUp(ctx, op, runID); err != nil {
			return err
		}
		if err := requireGoal(ctx, tx, node, op, e); err != nil {
			return err
		}
		return finish(ctx, tx, f, node, op, e)
	})
}

func finish(ctx context.Context, tx *tx, f activities.Fence, n sqlc.LockNodeRow, op sqlc.GetOperationRow, e activities.Finish) error {
	detail := map[string]string{"outcome": e.Outcome}
	if f.OpSeq != 0 {
		if err := releaseNode(ctx, tx, f, n, e, detail); err != nil {
			return err
		}
	}
	if err := tx.FinishOperation(ctx, sqlc.FinishOperationParams{
		OperationID: f.OperationID, OpSeq: f.OpSeq, Status: e.Status, Outcome: e.Outcome, Document: e.Document,
	}); err != nil {
		return err
	}
	n.State = cmp.Or(e.Node, n.State)
	if err := voidLeftovers(ctx, tx, f, n, op, e); err != nil {
		return err
	}
	tx.note(operationEvent(f, audit.ActionName(op.Action), finishResult(e.Status), "", detail))
	return nil
}

// releaseNode gives the node and its instance the states of the operation's end and
// releases the node. It adds the changes to detail.
func releaseNode(ctx context.Context, tx *tx, f activities.Fence, n sqlc.LockNodeRow, e activities.Finish, detail map[string]string) error {
	if e.Node != "" && e.Node != n.State {
		if err := tx.SetNodeState(ctx, n.NodeID, f.OpSeq, e.Node); err != nil {
			return err
		}
		detail["from"], detail["to"] = string(n.State), string(e.Node)
	}
	if e.Node != "" && e.Node != n.State && e.Instance == "" {
		if err := followNode(ctx, tx, n.NodeID, e.Node, detail); err != nil {
			return err
		}
	}
	was, err := setInstance(ctx, tx, n.NodeID, e.Instance)
	if err != nil {
		return err
	}
	if was != e.Instance {
		detail["instance"] = string(e.Instance)
	}
	return tx.ReleaseNode(ctx, n.NodeID, f.OpSeq)
}

// voidLeftovers voids the tasks of the ended operation, with VoidTokens its unused
// tokens and certificates, and with DenyIdentity every credential and task of the
// node, and what is kept about its present state. The identity of a node ends with a machine that was created for it. A reissue has
// neither tasks nor the node's identity.
func voidLeftovers(ctx context.Context, tx *tx, f activities.Fence, n sqlc.LockNodeRow, op sqlc.GetOperationRow, e activities.Finish) error {
	nodeID := n.NodeID
	holds := f.OpSeq != 0
	var err error
	switch {
	case e.DenyIdentity && holds:
		err = tx.voidIdentity(ctx, nodeID, []string{slotPending, slotCurrent}, allPurposes())
	case op.Claim.Creates && e.Instance == lifecycle.InstanceTerminated:
		err = endMachine(ctx, tx, n)
	case e.VoidTokens:
		err = voidUnusedTokens(ctx, tx, nodeID, holds)
	}
	if err != nil || !holds {
		return err
	}
	if !e.DenyIdentity {
		return tx.voidTasks(ctx, nodeID, &f.OperationID, f.Actor, f.Via)
	}
	if err := tx.voidTasks(ctx, nodeID, nil, f.Actor, f.Via); err != nil {
		return err
	}
	if err := tx.ForgetReports(ctx, nodeID); err != nil {
		return err
	}
	if err := tx.ForgetNode(ctx, nodeID); err != nil {
		return err
	}
	if err := tx.signalNodeRemoved(ctx, nodeID); err != nil {
		return err
	}
	tx.wakeNode(nodeID)
	return nil
}

// voidUnusedTokens voids the unused tokens and certificates that an operation issued: an
// enrollment, which holds the node, or a reissue.
func voidUnusedTokens(ctx context.Context, tx *tx, nodeID string, holds bool) error {
	if holds {
		return tx.voidIdentity(ctx, nodeID, []string{slotPending}, purposes(trust.PurposeEnroll, purposeFetch))
	}
	if err := tx.ReplaceUnusedOfReissue(ctx, nodeID); err != nil {
		return err
	}
	if _, err := tx.VoidTokens(ctx, nodeID, purposes(trust.PurposeReissue, purposeFetch)); err != nil {
		return err
	}
	return tx.VoidRecoveryTokens(ctx, nodeID)
}

// voidIdentity voids certificates and tokens of the node, and the recovery tokens
// of those certificates.
func (tx *tx) voidIdentity(ctx context.Context, nodeID string, slots, tokens []string) error {
	if _, err := tx.RetireCertificates(ctx, nodeID, slots); err != nil {
		return err
	}
	if _, err := tx.VoidTokens(ctx, nodeID, tokens); err != nil {
		return err
	}
	return tx.VoidRecoveryTokens(ctx, nodeID)
}

func finishResult(s lifecycle.OperationState) string {
	switch s {
	case lifecycle.OperationCompleted:
		return audit.Succeeded
	case lifecycle.OperationCanceled:
		return audit.Canceled
	}
	return audit.Failed
}

// Enrollment returns the progress of the node's enrollment in the current
// incarnation.
func (s *Operations) Enrollment(ctx context.Context, nodeID string) (activities.Enrollment, error) {
	row, err := ofNode(ctx, s.db, "reading the enrollment", nodeID, s.db.q.Enrollment)
	return activities.Enrollment(row), err
}

// Registration implements activities.Records.
func (s *Operations) Registration(ctx context.Context, nodeID string) (activities.Registration, error) {
	n, err := ofNode(ctx, s.db, "reading the registration", nodeID, s.db.q.NodeSKU)
	return activities.Registration{GPUsTotal: n.GPUsTotal, SKU: inventory.SKU{Name: n.Name, GPUModel: n.GPUModel, MaxGPUs: n.MaxGPUs,
		MinCPUs: n.MinCPUs, MinMemoryBytes: n.MinMemoryBytes, Active: n.Active}}, err
}

// HeartbeatAge implements activities.Records.
func (s *Operations) HeartbeatAge(ctx context.Context, nodeID string) (time.Duration, error) {
	n, err := ofNode(ctx, s.db, "reading the last heartbeat", nodeID, s.db.q.HeartbeatAge)
	if err != nil {
		return 0, err
	}
	if locked := refusedLocked(n.Host, lockOf(n.IdentityLockedAt, n.IdentityLockReason, n.IdentityLockedBy, n.IdentityLockNote)); locked != nil {
		return 0, locked
	}
	age := time.Duration(n.Seconds * float64(time.Second))
	if age > activities.AgentFresh && n.Deaf {
		return 0, activities.ErrDeaf()
	}
	return age, nil
}

// ofNode reads a fact of one node. KindNotFound if there is no such node.
func ofNode[T any](ctx context.Context, db *db, doing, nodeID string, find func(context.Context, string) (T, error)) (T, error) {
	return query(ctx, db, doing+" of node "+nodeID, func(ctx context.Context) (T, error) {
		if !schema.IsID(nodeID) {
			var none T
			return none, errNoNode(nodeID)
		}
		fact, err := find(ctx, nodeID)
		return fact, orMissing(err, errNoNode(nodeID))
	})
}
