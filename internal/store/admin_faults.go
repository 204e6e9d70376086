package store

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// undeliveredAfter is the age at which a message to Temporal counts as not delivered.
// A delivery takes milliseconds, and its first repetitions seconds.
const undeliveredAfter = time.Minute

// Faults returns the faults of the control plane that the database shows: messages that
// do not reach Temporal, and the restore mode.
func (s *Admin) Faults(ctx context.Context) ([]wire.ControlPlaneFault, error) {
	late, err := s.undelivered(ctx)
	if err != nil {
		return nil, err
	}
	mode, err := s.restoreMode(ctx)
	return append(late, mode...), err
}

// restoreMode returns a fault while the restore mode is on: identities are then accepted that
// the database does not have.
func (s *Admin) restoreMode(ctx context.Context) ([]wire.ControlPlaneFault, error) {
	epoch, err := query(ctx, s.db, "reading the restore mode", s.db.q.RestoreEpoch)
	if err != nil || epoch == 0 {
		return nil, err
	}
	m, err := restoreStatus(ctx, s.db)
	return []wire.ControlPlaneFault{{Component: "postgres", Reason: "restore_mode", Message: fmt.Sprintf(
		"the restore mode is on until %s: certificates that the database does not have are accepted, and no identity is locked as cloned; %s of the audit trail are missing, %d nodes were ahead, %d nodes were not heard from",
		m.EndsAt.Format(time.RFC3339), lifecycle.Span(time.Duration(m.AuditGapSeconds)*time.Second), m.NodesAhead, len(m.Absent)),
		Next: "gpuaas admin restore-mode status; when all nodes are back: gpuaas admin restore-mode stop"}}, err
}

func (s *Admin) undelivered(ctx context.Context) ([]wire.ControlPlaneFault, error) {
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
