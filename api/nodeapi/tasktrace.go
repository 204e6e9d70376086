package nodeapi

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuaas/gpuaas/schema/task"
)

// traceTask makes a span of a task from its result, under the span of the request. A node connects to no
// collector, so the API reports for it. The times are the node's own.
func traceTask(ctx context.Context, typ task.Type, taskID string, r task.Result) {
	if r.StartedAt.IsZero() || r.FinishedAt.Before(r.StartedAt) {
		return // rejected before it started, or a clock that was set
	}
	tracer := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/gpuaas/gpuaas")
	_, span := tracer.Start(ctx, "agent "+string(typ), trace.WithTimestamp(r.StartedAt), trace.WithAttributes(
		attribute.String("task_id", taskID), attribute.String("task_status", string(r.Status)), attribute.String("reported_by", "node")))
	if r.Status != task.Succeeded {
		span.SetStatus(codes.Error, string(r.Status))
	}
	span.End(trace.WithTimestamp(r.FinishedAt))
}
