package daemon

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// traceLogs adds the trace ID to log lines of a context with a span.
type traceLogs struct{ slog.Handler }

// Handle implements slog.Handler.
func (h traceLogs) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		r.AddAttrs(slog.String(labelTrace, span.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h traceLogs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceLogs{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h traceLogs) WithGroup(name string) slog.Handler { return traceLogs{h.Handler.WithGroup(name)} }
