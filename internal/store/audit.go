package store

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// systemActor acts where no person or node does.
const systemActor = "system"

// maxAuditText bounds a text of an audit row, so that no caller can fill the
// trail with one request.
const maxAuditText = 2000

// nodeActor is the actor of what a node's agent does.
func nodeActor(nodeID string) string { return "node:" + nodeID }

// writeAudit appends the unit's events to their streams. It is the unit's last
// step: a stream's head is locked for as short as possible.
func (u *unit) writeAudit(ctx context.Context) error {
	for _, e := range u.events {
		e = clean(e)
		detail, err := detailOf(e)
		if err != nil {
			return err
		}
		if err := u.later.AppendAudit(ctx, sqlc.AppendAuditParams{Stream: e.Stream, Actor: e.Actor, Action: e.Action, Target: e.Target,
			Result: e.Result, Reason: e.Reason, CorrelationID: e.CorrelationID, OperationID: e.OperationID, Detail: detail}); err != nil {
			return err
		}
	}
	return nil
}

// detailOf is the event's detail as audit_append takes it.
func detailOf(e audit.Event) (string, error) {
	if len(e.Detail) == 0 {
		return "", nil
	}
	raw, err := json.Marshal(e.Detail)
	return string(raw), err
}

// Audit returns up to limit events of a stream after seq, in order.
func (s *Store) Audit(ctx context.Context, stream string, after int64, limit int) ([]audit.Event, error) {
	var events []audit.Event
	err := s.read(ctx, "reading audit stream "+stream, func(ctx context.Context) error {
		rows, err := s.q.ListAudit(ctx, stream, after, int32(min(limit, 10_000)))
		if err != nil {
			return err
		}
		events = make([]audit.Event, len(rows))
		for i, r := range rows {
			if events[i], err = auditEvent(r); err != nil {
				return err
			}
		}
		return nil
	})
	return events, err
}

// AuditStreams lists the streams there are.
func (s *Store) AuditStreams(ctx context.Context) (streams []string, err error) {
	err = s.read(ctx, "listing audit streams", func(ctx context.Context) (err error) {
		streams, err = s.q.ListAuditStreams(ctx)
		return err
	})
	return streams, err
}

func auditEvent(r sqlc.AuditEvent) (audit.Event, error) {
	e := audit.Event{
		Stream: r.Stream, Seq: r.Seq, At: r.At, Actor: r.Actor, Action: r.Action, Target: r.Target,
		Result: r.Result, Reason: r.Reason, CorrelationID: r.CorrelationID, OperationID: r.OperationID,
		PrevHash: r.PrevHash, Hash: r.Hash,
	}
	if len(r.Detail) == 0 {
		return e, nil
	}
	return e, json.Unmarshal(r.Detail, &e.Detail)
}

// clean makes every text of the event one that Postgres and JSON store as it
// is, so that the row read back has the hash it was written with. Empty details
// are left out.
func clean(e audit.Event) audit.Event {
	for _, text := range []*string{&e.Stream, &e.Actor, &e.Action, &e.Target, &e.Reason, &e.CorrelationID, &e.OperationID} {
		*text = cleanText(*text)
	}
	detail := make(map[string]string, len(e.Detail))
	for k, v := range e.Detail {
		if v != "" {
			detail[cleanText(k)] = cleanText(v)
		}
	}
	e.Detail = detail
	return e
}

func cleanText(s string) string {
	if len(s) > maxAuditText {
		s = s[:maxAuditText]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
