package temporal

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdkotel "go.temporal.io/sdk/contrib/opentelemetry"

	"github.com/gpuaas/gpuaas/schema"
)

// traceInto adds spans to the client and to the worker that uses it. Their context goes
// through Temporal in the header of a workflow, which replay does not compare, so that
// tracing may be turned on and off while operations run. Queries are left out: clients
// repeat them.
func traceInto(opts *client.Options, t trace.Tracer) error {
	if t == nil {
		return nil
	}
	i, err := sdkotel.NewTracingInterceptor(sdkotel.TracerOptions{Tracer: t, TextMapPropagator: propagation.TraceContext{},
		DisableQueryTracing: true, DisableBaggage: true, AllowInvalidParentSpans: true, SpanStarter: startSpan})
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "tracing Temporal")
	}
	opts.Interceptors = append(opts.Interceptors, i)
	return nil
}

// startSpan is the interceptor's own way to make a span, with pending activities as no
// failures.
func startSpan(ctx context.Context, t trace.Tracer, name string, opts ...trace.SpanStartOption) trace.Span {
	_, span := t.Start(ctx, name, opts...)
	return activitySpan{span}
}

// activitySpan is a span to which activity.ErrResultPending is not an error: an activity that
// stays open for a node ends with it.
type activitySpan struct{ trace.Span }

// RecordError implements trace.Span.
func (s activitySpan) RecordError(err error, opts ...trace.EventOption) {
	if !errors.Is(err, activity.ErrResultPending) {
		s.Span.RecordError(err, opts...)
	}
}

// SetStatus implements trace.Span.
func (s activitySpan) SetStatus(code codes.Code, text string) {
	if text != activity.ErrResultPending.Error() {
		s.Span.SetStatus(code, text)
	}
}
