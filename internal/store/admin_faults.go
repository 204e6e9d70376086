package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// undeliveredAfter is the age at which a message to Temporal counts as not delivered.
// A delivery takes milliseconds, and its first repetitions seconds.
const undeliveredAfter = time.Minute

// Faults returns what the database shows and an operator must know: nodes with a locked
// identity or an alarm about it, nodes with a lost verifier set, messages that do not reach
// Temporal, old records that are not deleted, machines that no instance owns, repairs that health
// recovery does not start, and the restore mode.
func (s *Admin) Faults(ctx context.Context) ([]wire.ControlPlaneFault, error) {
	faults, err := s.identityFaults(ctx)
	if err != nil {
		return nil, err
	}
	outbox, err := s.outboxFaults(ctx)
	if err != nil {
		return nil, err
	}
	old, err := retentionFaults(ctx, s.db)
	if err != nil {
		return nil, err
	}
	sets, err := setFaults(ctx, s.db)
	if err != nil {
		return nil, err
	}
	machines, err := surplusFaults(ctx, s.db)
	if err != nil {
		return nil, err
	}
	repairs, err := recoveryFaults(ctx, s.db)
	if err != nil {
		return nil, err
	}
	mode, err := restoreFaults(ctx, s.db)
	return slices.Concat(mode, repairs, faults, sets, outbox, old, machines), err
}

// setFaults reports nodes with a verifier set that the database does not have.
func setFaults(ctx context.Context, db *db) ([]wire.ControlPlaneFault, error) {
	const shown = 5
	rows, err := query(ctx, db, "listing the nodes of lost verifier sets", func(ctx context.Context) ([]sqlc.NodesOfLostSetsRow, error) {
		return db.q.NodesOfLostSets(ctx, shown)
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	hosts := strings.Join(convert(rows, func(r sqlc.NodesOfLostSetsRow) string { return r.Host }), ", ")
	if rows[0].Nodes > shown {
		hosts += ", …"
	}
	heal := "the worker publishes a set that these nodes accept within an hour after the end of the restore mode; to have it now, start a rotation (gpuaas rotate task-key --reason TEXT)"
	if _, err := query(ctx, db, "reading the open rotation", db.q.OpenRotation); err == nil {
		heal = "these nodes accept the sets of the open rotation (gpuaas rotate show)"
	}
	return []wire.ControlPlaneFault{{Component: "verifier-set", Reason: "lost", Message: fmt.Sprintf(
		"a verifier set that the database does not have is on %s, which may reject its tasks: %s", text.Count(int(rows[0].Nodes), "node"), hosts),
		Next: "after a restore of the database: repeat each lost revocation (gpuaas trust revoke KEY --reason TEXT; of the active key if the record does not have the revoked one); " + heal +
			". Otherwise a node reports a set that never existed: gpuaas node lock NODE --reason TEXT"}}, nil
}

// restoreFaults returns a fault while the restore mode is on: identities are then accepted that
// the database does not have.
func restoreFaults(ctx context.Context, db *db) ([]wire.ControlPlaneFault, error) {
	epoch, err := query(ctx, db, "reading the restore mode", db.q.RestoreEpoch)
	if err != nil || epoch == 0 {
		return nil, err
	}
	m, err := restoreStatus(ctx, db)
	return []wire.ControlPlaneFault{{Component: "postgres", Reason: "restore_mode", Message: fmt.Sprintf(
		"the restore mode is on until %s: certificates that the database does not have are accepted, and no identity is locked as cloned; %s of the audit trail are missing, %s ahead of the database, %s without a heartbeat since",
		m.EndsAt.Format(time.RFC3339), lifecycle.Span(time.Duration(m.AuditGapSeconds)*time.Second), text.Count(int(m.NodesAhead), "node"), text.Count(len(m.Absent), "node")),
		Next: "gpuaas admin restore-mode status; when all nodes are back: gpuaas admin restore-mode stop"}}, err
}

// maxIdentityFaults bounds the nodes that are reported one by one.
const maxIdentityFaults = 20

// identityFaults reports the nodes with a locked identity or an alarm, newest first.
func (s *Admin) identityFaults(ctx context.Context) (faults []wire.ControlPlaneFault, err error) {
	rows, err := query(ctx, s.db, "listing locked identities", func(ctx context.Context) ([]sqlc.IdentityAttentionRow, error) {
		return s.db.q.IdentityAttention(ctx, trust.AlarmAge.Seconds(), maxIdentityFaults)
	})
	for _, r := range rows {
		alarm := trust.IdentityAlarm{Reason: r.IdentityAlarm}
		f := wire.ControlPlaneFault{Component: wire.ComponentNodeIdentity, Reason: alarm.Reason, Message: alarm.Message(), Next: alarm.Next(r.Host)}
		if r.IdentityLockReason != "" {
			lock := trust.IdentityLock{Reason: r.IdentityLockReason, By: r.IdentityLockedBy, Note: r.IdentityLockNote}
			f.Reason, f.Message, f.Next = lock.Reason, lock.Message(), lock.Next(r.Host)
		}
		f.Message = fmt.Sprintf("node %s, for %s: %s", r.Host, lifecycle.Span(time.Duration(r.AgeSeconds*float64(time.Second))), f.Message)
		faults = append(faults, f)
	}
	if len(rows) > 0 && rows[0].Nodes > int64(len(rows)) {
		faults = append(faults, wire.ControlPlaneFault{Component: wire.ComponentNodeIdentity, Reason: "more",
			Message: fmt.Sprintf("%d more nodes have a locked identity or an alarm about it", rows[0].Nodes-int64(len(rows))),
			Next:    "gpuaas node list -o json | jq '.nodes[] | select(.identity_lock or .identity_alarm)'"})
	}
	return faults, err
}

func (s *Admin) outboxFaults(ctx context.Context) ([]wire.ControlPlaneFault, error) {
	late, err := query(ctx, s.db, "reading undelivered messages", func(ctx context.Context) (sqlc.UndeliveredMessagesRow, error) {
		return s.db.q.UndeliveredMessages(ctx, undeliveredAfter.Seconds())
	})
	if err != nil || late.Messages == 0 {
		return nil, err
	}
	f := wire.ControlPlaneFault{Component: "outbox", Reason: "undelivered", Message: fmt.Sprintf(
		"%d results and events of nodes do not reach Temporal, the oldest for %s", late.Messages,
		lifecycle.Span(time.Duration(late.OldestSeconds*float64(time.Second)))),
		Next: "check that Temporal responds and that a gpuaas-api runs; its log has the errors of the relay"}
	if late.LastError != "" {
		f.Message += ": " + late.LastError
	}
	return []wire.ControlPlaneFault{f}, nil
}

// undeletedAfter is the age of the last complete deletion of old records at which it is a
// fault. There is one each hour.
const undeletedAfter = 48 * time.Hour

func retentionFaults(ctx context.Context, db *db) ([]wire.ControlPlaneFault, error) {
	seconds, err := query(ctx, db, "reading when old records were deleted", db.q.RetentionAge)
	age := time.Duration(seconds * float64(time.Second))
	if err != nil || age < undeletedAfter {
		return nil, err
	}
	return []wire.ControlPlaneFault{{Component: "retention", Reason: "stalled", Message: fmt.Sprintf(
		"old records were last deleted completely %s ago: the database grows", lifecycle.Span(age)),
		Next: "inspect the runs of " + lifecycle.WorkflowDelete + " in the Web UI, and check the free space of GPUAAS_AUDIT_ARCHIVE_DIR"}}, nil
}
