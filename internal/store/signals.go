package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/text"
)

// recordSignal adds a signal about a node, with the node's live instance. SignalID is optional: a
// second call with the same one adds nothing. Host, InstanceID and At are ignored. It is for signals
// that a node cannot cause at will; those have recordLimited.
func recordSignal(ctx context.Context, tx *tx, s health.Signal) error {
	return tx.InsertSignal(ctx, sqlc.InsertSignalParams{SignalID: cmp.Or(s.SignalID, schema.NewID()), NodeID: s.NodeID, Type: s.Type, Source: s.Source,
		Status: s.Status, Component: s.Component, Reason: s.Reason, Code: s.Code, Repair: s.Repair, BootID: s.BootID,
		Detail: printable(s.Detail)})
}

// printable returns a text as one line of at most health.MaxDetail printable ASCII characters.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text.Line(s, health.MaxDetail))
}

// recordLimited adds signals that the node or a reporter about it caused, at most
// signal.MaxPerHour in an hour. It counts the others in the detail of one signal of the type
// signal.Dropped. The caller holds the node's lock.
func recordLimited(ctx context.Context, tx *tx, nodeID string, signals []health.Signal) error {
	if len(signals) == 0 {
		return nil
	}
	count, err := tx.SignalCount(ctx, nodeID)
	if err != nil && !postgres.NotFound(err) {
		return err
	}
	admitted := min(len(signals), max(0, signal.MaxPerHour-count.Recorded))
	for _, s := range signals[:admitted] {
		s.NodeID = nodeID
		if err := recordSignal(ctx, tx, s); err != nil {
			return err
		}
	}
	count.Recorded += admitted
	if dropped := len(signals) - admitted; dropped > 0 {
		count.Dropped += dropped
		if count.SignalID, err = recordDropped(ctx, tx, nodeID, signals[0].Source, count); err != nil {
			return err
		}
	}
	return tx.PutSignalCount(ctx, sqlc.PutSignalCountParams{NodeID: nodeID, Recorded: count.Recorded, Dropped: count.Dropped, SignalID: count.SignalID})
}

// recordDropped shows the number of dropped signals of this hour, and returns the signal that has it.
func recordDropped(ctx context.Context, tx *tx, nodeID string, source health.Source, count sqlc.SignalCountRow) (*string, error) {
	detail := fmt.Sprintf("%d signals were dropped: the node caused more than %d in an hour", count.Dropped, signal.MaxPerHour)
	if count.SignalID != nil {
		return count.SignalID, tx.SetSignalDetail(ctx, *count.SignalID, detail)
	}
	id := schema.NewID()
	return &id, recordSignal(ctx, tx, health.Signal{SignalID: id, NodeID: nodeID, Type: signal.Dropped, Source: source, Detail: detail})
}
