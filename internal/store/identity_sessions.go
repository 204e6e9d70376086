package store

import (
	"context"
	"strconv"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The agent processes of a node that are kept.
const (
	// keptSessions are the newest ones. Others are kept for an hour after a newer one
	// replaced them: a process that still runs polls again within a minute.
	keptSessions = 8
	// maxSessions bounds all of them.
	maxSessions = 64
	// maxRecentSessions is how many may begin within trust.InFlight without an alarm.
	maxRecentSessions = 8
)

// RecordSession records which agent process polls, as nodeapi.Identities specifies. It
// writes only if another process made the poll before.
func (s *Identities) RecordSession(ctx context.Context, c nodeapi.Caller, p wire.PollRequest) error {
	if c.Session == p.AgentSession {
		return nil
	}
	return s.db.write(ctx, "recording the agent process of node "+c.NodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, c.NodeID)
		switch {
		case err != nil:
			return err
		case node.State.Refusing():
			return errRemoved()
		case node.Incarnation != c.Incarnation:
			return errIdentity(schema.ReasonIdentityMismatch, "the poll is for another incarnation of the node")
		case node.Locked:
			return errLocked(node.Host, node.IdentityLockReason)
		case node.PollSession == p.AgentSession:
			return nil // a concurrent poll recorded it
		}
		return changeSession(ctx, tx, c, node.PollContested, p)
	})
}

// changeSession makes the poll's process the one that polls. Once a process has polled after
// a newer one, the open polls of the other processes end, so one that still runs polls again
// at once.
func changeSession(ctx context.Context, tx *tx, c nodeapi.Caller, contested bool, p wire.PollRequest) error {
	known, err := tx.GetSession(ctx, sqlc.GetSessionParams{GapSeconds: trust.SessionGap.Seconds(), InFlightSeconds: trust.InFlight.Seconds(),
		NodeID: c.NodeID, Session: p.AgentSession, Incarnation: c.Incarnation})
	switch {
	case postgres.NotFound(err):
		err = addSession(ctx, tx, c, p)
	case err == nil && known.Superseded:
		contested = true
		err = sessionReturned(ctx, tx, c, known, p)
	}
	if err != nil {
		return err
	}
	if contested {
		tx.wakeNode(c.NodeID)
	}
	return tx.SetPollSession(ctx, p.AgentSession, contested, c.NodeID)
}

// addSession records a process that was not known. Many may mean that a second machine
// changes its name with each poll, or that the agent restarts in a loop, so they raise an
// alarm and lock nothing. Over the limit, the process before this one is forgotten: the
// older ones show whether one of them still runs.
func addSession(ctx context.Context, tx *tx, c nodeapi.Caller, p wire.PollRequest) error {
	if err := tx.PutSession(ctx, c.NodeID, p.AgentSession, c.Incarnation); err != nil {
		return err
	}
	if err := tx.PruneSessions(ctx, c.NodeID, c.Incarnation, keptSessions); err != nil {
		return err
	}
	known, err := tx.CountSessions(ctx, trust.InFlight.Seconds(), c.NodeID)
	if err != nil {
		return err
	}
	if known.Sessions > maxSessions {
		if err := tx.DeleteNewestSession(ctx, c.NodeID, p.AgentSession); err != nil {
			return err
		}
	}
	if known.Sessions <= maxSessions && known.Recent <= maxRecentSessions {
		return nil
	}
	return raiseAlarm(ctx, tx, clone{c.NodeID, c.Incarnation, trust.AlarmProcesses}, nodeEvent(c.NodeID, "", "", map[string]string{
		"serial": c.Serial, "agent_session": p.AgentSession, "recent_sessions": strconv.FormatInt(known.Recent, 10)}))
}

// sessionReturned handles the poll of a process after a poll of a newer one. Once, that may
// be a poll that was delayed while the agent restarted. Two different polls, apart in time
// and with a poll of another process between them, prove that the process still runs: the
// identity is locked. A poll that repeats the number or the nonce of the first return may be
// the same one, but only as long as a request can be in flight.
func sessionReturned(ctx context.Context, tx *tx, c nodeapi.Caller, known sqlc.GetSessionRow, p wire.PollRequest) error {
	e := nodeEvent(c.NodeID, "", "", map[string]string{"serial": c.Serial, "agent_session": p.AgentSession,
		"newer_session": known.NewerSession, "poll_seq": strconv.FormatInt(p.PollSeq, 10)})
	evidence := clone{c.NodeID, c.Incarnation, trust.AlarmSession}
	if known.ReturnedAt == nil {
		err := tx.SetSessionReturn(ctx, sqlc.SetSessionReturnParams{Nonce: p.Nonce, Seq: p.PollSeq, NodeID: c.NodeID, Session: p.AgentSession})
		if err != nil || !known.SupersededLong {
			return err
		}
		return raiseAlarm(ctx, tx, evidence, e)
	}
	repeated := p.Nonce == known.ReturnNonce || p.PollSeq != 0 && p.PollSeq <= known.ReturnSeq
	if repeated && known.ReturnInFlight || !known.ReturnedBefore {
		return nil
	}
	evidence.reason = trust.LockedBySessions
	return refuseClone(evidence, e)
}
