package daemon

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// envTraces and envTelemetry name the collector of traces. Without one of them, nothing is
// traced. The exporter reads the other OTEL_ variables itself.
const (
	envTraces    = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envTelemetry = "OTEL_EXPORTER_OTLP_ENDPOINT"
)

// attributeCorrelation is the attribute with the correlation ID.
const attributeCorrelation = "correlation_id"

// labelTrace names the trace ID in logs and in exemplars.
const labelTrace = "trace_id"

// flushBudget bounds the export of the last spans at a stop.
const flushBudget = 3 * time.Second

// collects reports whether the environment names a collector.
func collects() bool { return cmp.Or(os.Getenv(envTraces), os.Getenv(envTelemetry)) != "" }

// exporter returns the exporter to the collector that the environment names, nil without
// one.
func exporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	if !collects() {
		return nil, nil
	}
	e, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "the exporter of %s", envTelemetry)
	}
	return e, nil
}

// scope names this program's spans.
const scope = "github.com/gpuaas/gpuaas"

// about describes the program in each span.
func about(service string) sdktrace.TracerProviderOption {
	r := resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version.Version()))
	if named, err := resource.Merge(r, resource.Environment()); err == nil {
		r = named
	}
	return sdktrace.WithResource(r)
}

// trace sends the process's spans to the exporter until the process closes. A collector
// that does not respond costs spans and nothing else.
func (p *Process) trace(ctx context.Context, service string, e sdktrace.SpanExporter) {
	if e == nil {
		return
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { p.Log.Warn("cannot export traces", slog.Any("err", err)) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(&outages{SpanExporter: e, log: p.Log}), about(service), sdktrace.WithIDGenerator(correlated{}))
	p.Tracer = provider.Tracer(scope)
	p.OnClose(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushBudget)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			p.Log.Warn("cannot export the last traces", slog.Any("err", err))
		}
	})
}

// outages logs the beginning and the end of each time in which the collector receives nothing, instead of
// every batch. The spans of that time are lost.
type outages struct {
	sdktrace.SpanExporter
	log *slog.Logger
	// out is true while the collector receives nothing. Only one batch is exported at a time.
	out bool
}

// ExportSpans implements sdktrace.SpanExporter.
func (o *outages) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := o.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !o.out:
		o.log.Warn("cannot export traces; the spans are lost until the collector responds", slog.Any("err", err))
	case err == nil && o.out:
		o.log.Info("traces are exported again")
	}
	o.out = err != nil
	return nil
}

// traced makes a span of each request that has a traceparent or a correlation ID. The
// correlation ID is the trace ID of the latter: it is in every task and in what the agent
// sends for it, so that a trace continues on a node without tracing. The
// handler names the span after its route; a path may contain a token.
func (p *Process) traced(listener string, next http.Handler) http.Handler {
	if p.Tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		id, err := uuid.Parse(r.Header.Get(wire.HeaderCorrelationID))
		if err == nil {
			ctx = context.WithValue(ctx, correlationKey{}, trace.TraceID(id))
		} else if !trace.SpanContextFromContext(ctx).IsValid() {
			next.ServeHTTP(w, r)
			return
		}
		ctx, span := p.Tracer.Start(ctx, listener+" "+r.Method, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method)))
		defer span.End()
		if err == nil {
			span.SetAttributes(attribute.String(attributeCorrelation, id.String()))
		}
		status := &statusWriter{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(status, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", status.code))
		if status.code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status.code))
		}
	})
}

// statusWriter remembers the status code.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// correlationKey is the context key of the trace ID of a request.
type correlationKey struct{}

// correlated makes random ids, except for the trace ID of a request with a correlation ID.
type correlated struct{}

// NewIDs implements sdktrace.IDGenerator.
func (c correlated) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	id, ok := ctx.Value(correlationKey{}).(trace.TraceID)
	if !ok || !id.IsValid() {
		_, _ = crand.Read(id[:]) // never fails
	}
	return id, c.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (correlated) NewSpanID(context.Context, trace.TraceID) (span trace.SpanID) {
	_, _ = crand.Read(span[:]) // never fails
	return span
}
