package daemon

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// commandFlush bounds how long the end of a command waits for the collector.
const commandFlush = 500 * time.Millisecond

// TraceCommand makes a span of a command of an operator, whose requests have the correlation ID. The span has
// the words of the command and no argument. end exports it: a collector that does not respond delays
// the end by at most half a second, and is not reported. Without a collector in the environment, ctx is
// unchanged and end does nothing.
func TraceCommand(ctx context.Context, service, command, correlationID string) (traced context.Context, end func(exitCode int)) {
	id, err := uuid.Parse(correlationID)
	if err != nil || !collects() {
		return ctx, func(int) {}
	}
	e, err := otlptracehttp.New(ctx, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}), otlptracehttp.WithTimeout(commandFlush))
	if err != nil {
		return ctx, func(int) {}
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(e), about(service), sdktrace.WithIDGenerator(correlated{}))
	traced, span := provider.Tracer(scope).Start(context.WithValue(ctx, correlationKey{}, trace.TraceID(id)), strings.TrimSpace(command),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String(attributeCorrelation, correlationID)))
	return traced, func(exitCode int) {
		span.SetAttributes(attribute.Int("process.exit.code", exitCode))
		if exitCode != 0 {
			span.SetStatus(codes.Error, "")
		}
		span.End()
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandFlush)
		defer cancel()
		_ = provider.Shutdown(flush) // spans that are lost change nothing
	}
}
