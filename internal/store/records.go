package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Advance records progress under the fence, as activities.Records says. An
// operation that does not hold its node changes nothing of it, whatever a says.
func (s *Store) Advance(ctx context.Context, f activities.Fence, a activities.Advance) error {
	return s.write(ctx, "recording progress of operation "+f.OperationID, func(ctx context.Context, u *unit) error {
		node, op, err := u.recorded(ctx, f)
		if err != nil {
			return err
		}
		if op.EndedAt != nil {
			return errOver(f)
		}
		if err := u.worksOn(ctx, f.OperationID, a.RunID); err != nil {
			return err
		}
		if a.Step != 0 && a.Step <= op.Step {
			return nil
		}
		if err := u.AdvanceOperation(ctx, advanced(op, a)); err != nil {
			return err
		}
		if a.Decision != nil && (a.Step != 0 || op.Decision == nil || *op.Decision != *a.Decision) {
			u.noteDecision(f, a)
		}
		if f.OpSeq != 0 {
			err = u.applyAdvance(ctx, f, node, a)
		}
		if err != nil {
			return err
		}
		if a.Stuck != nil && !sameStuck(op.Stuck, a.Stuck) {
			u.notePark(f, op.Action, *a.Stuck)
		}
		return nil
	})
}

// worksOn makes the run the one that the operation's views name.
func (u *unit) worksOn(ctx context.Context, operationID, runID string) error {
	if runID == "" {
		return nil
	}
	return u.later.SetOperationRun(ctx, runID, operationID)
}

// advanced is the operation's row after a. The last decision is kept until the
// operation parks again or changes its phase, so that a repeat of it is told
// from the same decision made once more.
func advanced(op sqlc.GetOperationRow, a activities.Advance) sqlc.AdvanceOperationParams {
	p := sqlc.AdvanceOperationParams{
		OperationID: op.OperationID, OpSeq: op.OpSeq, Status: lifecycle.OperationRunning,
		Phase: op.Phase, Step: max(op.Step, a.Step), Stuck: a.Stuck, Decision: a.Decision,
	}
	if a.Stuck != nil {
		p.Status = lifecycle.OperationParked
	}
	if a.Phase != "" {
		p.Phase = a.Phase
	}
	if a.Decision == nil && a.Stuck == nil && p.Phase == op.Phase {
		p.Decision = op.Decision
	}
	return p
}

func sameStuck(a, b *lifecycle.Stuck) bool {
	return a != nil && a.Phase == b.Phase && a.Reason == b.Reason && a.Since.Equal(b.Since)
}

// applyAdvance changes the node and its instance as a says, with an audit row
// for each that really changes.
func (u *unit) applyAdvance(ctx context.Context, f activities.Fence, n sqlc.LockNodeRow, a activities.Advance) error {
	detail := map[string]string{}
	if a.Node != "" && a.Node != n.State {
		if err := one(f)(u.SetNodeState(ctx, n.NodeID, f.OpSeq, a.Node)); err != nil {
			return err
		}
		detail["from"], detail["to"] = string(n.State), string(a.Node)
	}
	if a.Cordoned != nil && *a.Cordoned != n.Cordoned {
		if err := one(f)(u.SetNodeCordoned(ctx, n.NodeID, f.OpSeq, *a.Cordoned)); err != nil {
			return err
		}
		detail["cordoned"] = map[bool]string{true: "yes", false: "no"}[*a.Cordoned]
	}
	if len(detail) > 0 {
		detail["phase"] = a.Phase
		u.note(event(f, audit.StateChanged, audit.Succeeded, "", detail))
	}
	if a.Facts != nil {
		if err := one(f)(u.SetNodeFacts(ctx, n.NodeID, f.OpSeq, a.Facts)); err != nil {
			return err
		}
	}
	was, err := u.setInstance(ctx, n, a.Instance)
	if err == nil && a.Instance != "" && was != a.Instance {
		u.note(event(f, audit.InstanceChanged, audit.Succeeded, "",
			map[string]string{"from": string(was), "to": string(a.Instance), "phase": a.Phase}))
	}
	return err
}

// setInstance puts the node's instance into the state and returns the state it
// was in. The first state of a machine makes its row; "" changes nothing.
func (u *unit) setInstance(ctx context.Context, n sqlc.LockNodeRow, want lifecycle.InstanceState) (lifecycle.InstanceState, error) {
	if want == lifecycle.InstanceNone {
		return want, nil
	}
	was, err := u.liveInstance(ctx, n.NodeID)
	switch {
	case err != nil || was == want:
		return was, err
	case was != lifecycle.InstanceNone:
		return was, u.SetInstanceState(ctx, n.NodeID, want)
	case want == lifecycle.InstanceTerminated: // there is none, or it is gone already
		return want, nil
	}
	return was, u.InsertInstance(ctx, sqlc.InsertInstanceParams{
		InstanceID: schema.NewID(), NodeID: n.NodeID, Provider: n.OnboardingMode, State: want,
	})
}

func (u *unit) noteDecision(f activities.Fence, a activities.Advance) {
	e := event(f, audit.Decision, audit.Accepted, a.Decision.Reason,
		map[string]string{"decision": string(a.Decision.Decision), "phase": a.Phase})
	e.Actor, e.Target = a.Decision.By, f.OperationID
	u.note(e)
}

func (u *unit) notePark(f activities.Fence, action lifecycle.Action, s lifecycle.Stuck) {
	u.note(event(f, audit.ActionName(action), audit.Parked, s.Reason,
		map[string]string{"phase": s.Phase, "message": s.Message, "attention": string(s.WaitingOn)}))
}

// Finish ends the operation under the fence, as activities.Records says. An
// operation that does not hold its node ends its own row and with VoidTokens
// what it made, whatever else e says.
func (s *Store) Finish(ctx context.Context, f activities.Fence, e activities.Finish) error {
	return s.write(ctx, "ending operation "+f.OperationID, func(ctx context.Context, u *unit) error {
		node, op, err := u.recorded(ctx, f)
		if err != nil {
			return err
		}
		if op.EndedAt != nil {
			if op.Status == e.Status {
				return nil
			}
			return errOver(f)
		}
		if !e.Status.Ended() || e.Status == lifecycle.OperationRejected {
			return schema.Errorf(schema.KindInvalidRequest, "an operation cannot end as %q", e.Status)
		}
		if err := u.worksOn(ctx, f.OperationID, e.RunID); err != nil {
			return err
		}
		if f.OpSeq == 0 {
			return u.endReissue(ctx, f, op, e)
		}
		return u.finish(ctx, f, node, op, e)
	})
}

func (u *unit) finish(ctx context.Context, f activities.Fence, n sqlc.LockNodeRow, op sqlc.GetOperationRow, e activities.Finish) error {
	detail := map[string]string{"outcome": e.Outcome}
	if e.Node != "" && e.Node != n.State {
		if err := one(f)(u.SetNodeState(ctx, n.NodeID, f.OpSeq, e.Node)); err != nil {
			return err
		}
		detail["from"], detail["to"] = string(n.State), string(e.Node)
	}
	was, err := u.setInstance(ctx, n, e.Instance)
	if err != nil {
		return err
	}
	if was != e.Instance {
		detail["instance"] = string(e.Instance)
	}
	if err := u.FinishOperation(ctx, sqlc.FinishOperationParams{
		OperationID: f.OperationID, OpSeq: f.OpSeq, Status: e.Status, Outcome: e.Outcome,
	}); err != nil {
		return err
	}
	if err := one(f)(u.ReleaseNode(ctx, n.NodeID, f.OpSeq)); err != nil {
		return err
	}
	if err := u.endWork(ctx, f, n.NodeID, e); err != nil {
		return err
	}
	u.note(event(f, audit.ActionName(op.Action), finishResult(e.Status), "", detail))
	return nil
}

// endWork voids what the ended operation leaves: its tasks, its unused tokens
// and certificates when asked, and when the identity is denied everything the
// node could still use.
func (u *unit) endWork(ctx context.Context, f activities.Fence, nodeID string, e activities.Finish) error {
	var err error
	switch {
	case e.DenyIdentity:
		err = u.voidIdentity(ctx, nodeID, []string{slotPending, slotCurrent}, allPurposes())
	case e.VoidTokens:
		err = u.voidIdentity(ctx, nodeID, []string{slotPending}, purposes(trust.PurposeEnroll, purposeFetch))
	}
	if err != nil {
		return err
	}
	if !e.DenyIdentity {
		return u.voidTasks(ctx, nodeID, &f.OperationID, f.Actor)
	}
	if err := u.voidTasks(ctx, nodeID, nil, f.Actor); err != nil {
		return err
	}
	if err := u.tellRemoved(ctx, nodeID); err != nil {
		return err
	}
	return u.later.Notify(ctx, channelNode, nodeID)
}

// voidIdentity voids certificates and tokens of the node, and the recovery tokens
// that lose their certificate by it.
func (u *unit) voidIdentity(ctx context.Context, nodeID string, slots, tokens []string) error {
	if _, err := u.RetireCertificates(ctx, nodeID, slots); err != nil {
		return err
	}
	if _, err := u.VoidTokens(ctx, nodeID, tokens); err != nil {
		return err
	}
	return u.VoidRecoveryTokens(ctx, nodeID)
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

// event is an audit event of the fence's operation on its node.
func event(f activities.Fence, action, result, reason string, detail map[string]string) audit.Event {
	return audit.Event{
		Stream: f.NodeID, Actor: f.Actor, Action: action, Target: f.NodeID, Result: result, Reason: reason,
		CorrelationID: f.CorrelationID, OperationID: f.OperationID, Detail: detail,
	}
}

// Enrollment says how far the node's enrolment has come, for the current
// incarnation.
func (s *Store) Enrollment(ctx context.Context, nodeID string) (activities.Enrollment, error) {
	var p activities.Enrollment
	err := s.read(ctx, "reading the enrolment of node "+nodeID, func(ctx context.Context) error {
		if !schema.IsID(nodeID) {
			return errNoNode(nodeID)
		}
		row, err := s.q.Enrollment(ctx, nodeID)
		if notFound(err) {
			return errNoNode(nodeID)
		}
		p = activities.Enrollment{Incarnation: row.Incarnation, ReissueIssued: row.ReissueIssued,
			BundleIssued: row.Issued, TokenClaimed: row.Claimed, Polled: row.Polled, Removed: row.Removed}
		return err
	})
	return p, err
}

// LastHeartbeat returns when the node's agent was last heard, zero when never.
func (s *Store) LastHeartbeat(ctx context.Context, nodeID string) (time.Time, error) {
	var at time.Time
	err := s.read(ctx, "reading the last heartbeat of node "+nodeID, func(ctx context.Context) error {
		if !schema.IsID(nodeID) {
			return errNoNode(nodeID)
		}
		last, err := s.q.LastHeartbeat(ctx, nodeID)
		if notFound(err) {
			return errNoNode(nodeID)
		}
		if last != nil {
			at = *last
		}
		return err
	})
	return at, err
}
