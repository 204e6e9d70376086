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
// do not reach Temporal.
func (s *Admin) Faults(ctx context.Context) ([]wire.ControlPlaneFault, error) {
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
