package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// clone is the evidence that two machines use one identity.
type clone struct {
	nodeID      string
	incarnation int64
	reason      string // of trust.IdentityLock
}

// refuseClone locks the incarnation: both machines are refused until an operator
// reissues the enrollment.
func refuseClone(c clone, e audit.Event) error {
	e.Action, e.Result, e.Reason = audit.IdentityLocked, audit.Succeeded, c.reason
	return &refusal{err: errLocked(c.nodeID, c.reason), event: e, clone: &c}
}

// lockIdentity locks the identity, once, and ends the node's open polls. It does not
// lock a newer incarnation.
func lockIdentity(ctx context.Context, tx *tx, c clone, e audit.Event) error {
	if _, err := tx.lockNode(ctx, c.nodeID); err != nil {
		return err
	}
	rows, err := tx.LockIdentity(ctx, sqlc.LockIdentityParams{Reason: c.reason, NodeID: c.nodeID, Incarnation: c.incarnation})
	if err != nil || rows == 0 {
		return err
	}
	tx.note(e)
	tx.wakeNode(c.nodeID)
	return nil
}

// raiseAlarm stores an alarm about the incarnation with its audit row, at most once an hour
// and unless the node has an alarm that proves more.
func raiseAlarm(ctx context.Context, tx *tx, c clone, e audit.Event) error {
	rows, err := tx.SetIdentityAlarm(ctx, sqlc.SetIdentityAlarmParams{Reason: c.reason, Replaces: trust.IdentityAlarm{Reason: c.reason}.Replaces(),
		AlarmSeconds: trust.AlarmAge.Seconds(), NodeID: c.nodeID, Incarnation: c.incarnation})
	if err != nil || rows == 0 {
		return err
	}
	e.Action, e.Result, e.Reason = audit.IdentityAlarm, audit.Succeeded, c.reason
	tx.note(e)
	return nil
}

// Lock locks a node's identity at an operator's request, as adminapi.IdentityLocks specifies.
func (s *Identities) Lock(ctx context.Context, nodeID, reason string, by audit.Subject) error {
	return s.db.write(ctx, "locking the identity of node "+nodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, nodeID)
		if err != nil {
			return err
		}
		e := subjectEvent(by, nodeID, audit.NodeLock, nodeID, map[string]string{"state": string(node.State)})
		if node.State.Refusing() {
			return refuse(schema.NewError(schema.KindInvalidRequest, "node %s is %s: its identity is already rejected", node.Host, node.State).
				WithReason("invalid_state"), e)
		}
		e.Reason = reason
		voided, err := voidBundles(ctx, tx, nodeID)
		if err != nil {
			return err
		}
		if voided != "" {
			e.Detail["voided"] = voided
			if err := endReissue(ctx, tx, node, "a lock of the identity voided its token; for a new one, run: "); err != nil {
				return err
			}
		}
		if node.Locked {
			if voided == "" && node.IdentityLockReason == trust.LockedByOperator && node.IdentityLockNote == cleanText(reason) {
				return nil // repeated
			}
			e.Detail["lock"] = node.IdentityLockReason
			tx.note(e)
			return nil
		}
		if _, err := tx.LockIdentity(ctx, sqlc.LockIdentityParams{Reason: trust.LockedByOperator, LockedBy: cleanText(by.Actor), Note: cleanText(reason),
			NodeID: nodeID, Incarnation: node.Incarnation}); err != nil {
			return err
		}
		tx.note(e)
		tx.wakeNode(nodeID)
		return nil
	})
}

// voidBundles voids the tokens and bundle references of a node that begin an identity, and
// returns them for the audit.
func voidBundles(ctx context.Context, tx *tx, nodeID string) (string, error) {
	voided, err := tx.VoidTokens(ctx, nodeID, purposes(trust.PurposeEnroll, trust.PurposeReissue, purposeFetch))
	if err != nil {
		return "", err
	}
	var ids []string
	for _, t := range voided {
		ids = append(ids, string(t.Purpose)+":"+t.TokenID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " "), nil
}

// Unlock lifts an operator's lock and dismisses an alarm, as adminapi.IdentityLocks specifies.
func (s *Identities) Unlock(ctx context.Context, nodeID, reason string, by audit.Subject) error {
	return s.db.write(ctx, "unlocking the identity of node "+nodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, nodeID)
		if err != nil || !node.Locked && node.IdentityAlarm == "" {
			return err
		}
		e := subjectEvent(by, nodeID, audit.NodeUnlock, nodeID, map[string]string{"lock": node.IdentityLockReason, "alarm": node.IdentityAlarm})
		if lock := (trust.IdentityLock{Reason: node.IdentityLockReason}); node.Locked && lock.Reason != trust.LockedByOperator {
			return refuse(schema.NewError(schema.KindInvalidRequest,
				"node %s cannot be unlocked: %s", node.Host, lock.Message()).
				WithReason("reissue_required").WithNext(lock.Next(node.Host)), e)
		}
		e.Reason = reason
		if err := tx.UnlockIdentity(ctx, nodeID); err != nil {
			return err
		}
		tx.note(e)
		return tx.DeleteSessions(ctx, nodeID)
	})
}

// lockOf returns the lock that a node's columns contain, nil if there is none.
func lockOf(at *time.Time, reason, by, note string) *trust.IdentityLock {
	if at == nil {
		return nil
	}
	return &trust.IdentityLock{Reason: reason, Since: at.UTC(), By: by, Note: note}
}

// refusedLocked returns why a node with the lock receives no tasks, nil if it is not locked.
func refusedLocked(host string, l *trust.IdentityLock) *schema.Error {
	if l == nil {
		return nil
	}
	return lifecycle.IdentityLocked(host, *l)
}

// errLocked takes the node's host or id and the reason of its lock.
func errLocked(node, reason string) *schema.Error {
	message := "the node's identity is locked: it is in use on two machines"
	if reason == trust.LockedByOperator {
		message = "an operator locked the node's identity"
	}
	return schema.NewError(schema.KindInvalidNodeIdentity, "%s", message).
		WithReason(schema.ReasonNodeLocked).WithNext(trust.IdentityLock{Reason: reason}.Next(node))
}

// errForeignKey refuses a key that is bound to another node: one machine is a clone
// of the other.
func errForeignKey() *schema.Error {
	return schema.NewError(schema.KindInvalidRequest, "this key belongs to another node: generate a new one").
		WithReason("key_in_use")
}
