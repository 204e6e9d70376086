package store

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// systemActor is the actor of changes that no person or node requested.
const systemActor = "system"

// unauthenticated is the actor of a request whose token is not yet verified.
const unauthenticated = "unauthenticated"

// maxAuditText bounds each text of an audit row in bytes, so that no request can
// fill the trail.
const maxAuditText = 2000

// maxAuditPage bounds the events that AuditStream returns.
const maxAuditPage = 10_000

// nodeActor is the actor of a node's agent.
func nodeActor(nodeID string) string { return "node:" + nodeID }

// operationEvent is an event of the fence's operation on its node.
func operationEvent(f activities.Fence, action, result, reason string, detail map[string]string) audit.Event {
	return audit.Event{
		Stream: f.NodeID, Actor: f.Actor, Via: f.Via, Action: action, Target: f.NodeID, Result: result, Reason: reason,
		CorrelationID: f.CorrelationID, OperationID: f.OperationID, Detail: detail,
	}
}

// taskEvent is an event of the fence's operation on a task.
func taskEvent(f activities.Fence, action, taskID, result, reason string, detail map[string]string) audit.Event {
	e := operationEvent(f, action, result, reason, detail)
	e.Target = taskID
	return e
}

// nodeEvent is an event that the node's agent caused.
func nodeEvent(nodeID, action, result string, detail map[string]string) audit.Event {
	return audit.Event{Stream: nodeID, Actor: nodeActor(nodeID), Action: action, Target: nodeID, Result: result, Detail: detail}
}

// subjectEvent is an event that a request of the admin API caused.
func subjectEvent(by audit.Subject, stream, action, target string, detail map[string]string) audit.Event {
	return audit.Event{Stream: stream, Actor: by.Actor, Via: by.Via, Action: action, Target: target, Result: audit.Succeeded,
		CorrelationID: by.CorrelationID, Detail: detail}
}

// appendAudit appends the transaction's events to their streams. It runs last
// because each append locks its stream.
func (tx *tx) appendAudit(ctx context.Context) error {
	for _, e := range tx.events {
		e = clean(e)
		detail, err := json.Marshal(e.Detail)
		if err != nil {
			return err
		}
		if err := tx.AppendAudit(ctx, sqlc.AppendAuditParams{Stream: e.Stream, Actor: e.Actor, Via: e.Via, Action: e.Action,
			Target: e.Target, Result: e.Result, Reason: e.Reason, CorrelationID: e.CorrelationID, OperationID: e.OperationID,
			Detail: detail}); err != nil {
			return err
		}
	}
	return nil
}

// clean makes every text of the event one that Postgres can store, drops empty
// details and bounds the lengths.
func clean(e audit.Event) audit.Event {
	for _, text := range []*string{&e.Stream, &e.Actor, &e.Via, &e.Action, &e.Target, &e.Reason, &e.CorrelationID, &e.OperationID} {
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
