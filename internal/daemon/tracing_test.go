package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/otlptest"
)

// kept is an exporter that keeps its spans.
type kept struct {
	spans []sdktrace.ReadOnlySpan
	err   error
}

func (k *kept) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.spans = append(k.spans, spans...)
	return k.err
}

func (*kept) Shutdown(context.Context) error { return nil }

func tracedProcess(t *testing.T, e sdktrace.SpanExporter) *Process {
	t.Helper()
	p := newProcess(&Common{ProbeEvery: 1}, slog.New(slog.DiscardHandler))
	p.trace(t.Context(), "test", e)
	return p
}

func (p *Process) closeAll() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
}

func TestTracedRequests(t *testing.T) { //nolint:paralleltest // sets OpenTelemetry's error handler
	k := &kept{}
	p := tracedProcess(t, k)
	h := p.traced("admin", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, inner := p.Tracer.Start(r.Context(), "inner")
		inner.End()
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	request := func(header, value string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/secret-path", nil)
		r.Header.Set(header, value)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	request(wire.HeaderCorrelationID, "0190b6c2-1111-7aaa-8bbb-0123456789ab")
	request("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	request(wire.HeaderCorrelationID, "not-a-uuid")
	p.closeAll()

	traces := map[string][]string{}
	for _, s := range k.spans {
		if s.Name() == "inner" {
			continue // a span of a request without an ID begins a trace of its own
		}
		id := s.SpanContext().TraceID().String()
		traces[id] = append(traces[id], s.Name())
		require.Equal(t, trace.SpanKindServer, s.SpanKind())
		for _, a := range s.Attributes() {
			require.NotContains(t, a.Value.String(), "secret-path")
		}
	}
	require.Equal(t, map[string][]string{"0190b6c211117aaa8bbb0123456789ab": {"admin POST"}, "4bf92f3577b34da6a3ce929d0e0e4736": {"admin POST"}}, traces)
	require.Equal(t, "0190b6c211117aaa8bbb0123456789ab", k.spans[0].SpanContext().TraceID().String(), "the inner span is in the request's trace")
}

func TestTracesAreOffByDefault(t *testing.T) {
	t.Setenv(envTelemetry, "")
	t.Setenv(envTraces, "")
	e, err := exporter(t.Context())
	require.NoError(t, err)
	require.Nil(t, e)
	p := newProcess(&Common{ProbeEvery: 1}, slog.New(slog.DiscardHandler))
	p.trace(t.Context(), "test", e)
	require.Nil(t, p.Tracer)
	require.Empty(t, p.closers)
}

// A collector receives the spans, at the latest when the process closes.
func TestTracesReachTheCollector(t *testing.T) {
	var received atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && r.URL.Path == "/v1/traces" {
			received.Add(int64(len(body)))
		}
	}))
	t.Cleanup(collector.Close)
	t.Setenv(envTelemetry, collector.URL)
	e, err := exporter(t.Context())
	require.NoError(t, err)
	p := tracedProcess(t, e)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Header.Set(wire.HeaderCorrelationID, schema.NewID())
	p.traced("admin", http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	p.closeAll()
	require.Positive(t, received.Load())
}

// An outage of the collector is one line in the log, and its end another one.
func TestOutageOfTheCollector(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	failing := &kept{err: errors.New("connection refused")}
	o := &outages{SpanExporter: failing, log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		require.NoError(t, o.ExportSpans(t.Context(), nil))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "connection refused")
	failing.err = nil
	require.NoError(t, o.ExportSpans(t.Context(), nil))
	require.NoError(t, o.ExportSpans(t.Context(), nil))
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "exported again")
}

// Requests are served while the collector accepts connections and never responds.
func TestSilentCollectorDelaysNoRequest(t *testing.T) {
	silent := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent }))
	t.Cleanup(collector.Close)
	t.Cleanup(func() { close(silent) })
	t.Setenv(envTelemetry, collector.URL)
	e, err := exporter(t.Context())
	require.NoError(t, err)
	p := tracedProcess(t, e)
	h := p.traced("admin", http.NotFoundHandler())
	for range 10_000 { // more spans than the queue has places
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header.Set(wire.HeaderCorrelationID, schema.NewID())
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}

// A command's span begins the trace of its correlation ID, and its requests carry it.
func TestTracedCommand(t *testing.T) {
	r := otlptest.Start()
	t.Cleanup(r.Close)
	t.Setenv(envTelemetry, r.URL())
	id := schema.NewID()
	ctx, end := TraceCommand(t.Context(), "gpuaas", "gpuaas node drain", id)
	header := propagation.HeaderCarrier{}
	propagation.TraceContext{}.Inject(ctx, header)
	trace := strings.ReplaceAll(id, "-", "")
	require.Contains(t, header.Get("traceparent"), trace)
	end(1)
	spans := r.Trace(trace)
	require.Len(t, spans, 1)
	require.Equal(t, "gpuaas node drain", spans[0].Name)
	require.Equal(t, id, spans[0].Attributes["correlation_id"])

	t.Setenv(envTelemetry, "")
	ctx, end = TraceCommand(t.Context(), "gpuaas", "gpuaas node drain", id)
	require.Equal(t, t.Context(), ctx)
	end(0)
}

// A command does not wait for a collector that is not there.
func TestCommandWithoutItsCollector(t *testing.T) {
	r := otlptest.Start()
	r.Close()
	t.Setenv(envTelemetry, r.URL())
	_, end := TraceCommand(t.Context(), "gpuaas", "gpuaas stuck", schema.NewID())
	end(0)
}

// Log lines of a traced request have its trace ID.
func TestLogsHaveTheTrace(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := slog.New(traceLogs{slog.NewJSONHandler(&out, nil)}).With("service", "test")
	log.InfoContext(t.Context(), "without")
	require.NotContains(t, out.String(), labelTrace)
	log.InfoContext(sampled(t, trace.TraceID{1}), "with")
	require.Contains(t, out.String(), `"trace_id":"01000000000000000000000000000000"`)
}

// sampled is a context with a span that is exported.
func sampled(t *testing.T, id trace.TraceID) context.Context {
	t.Helper()
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled}))
}

// A scrape that accepts OpenMetrics gets the trace of a slow request as an exemplar. Another scrape gets the
// same series without it.
func TestExemplars(t *testing.T) {
	t.Parallel()
	p := newProcess(&Common{ProbeEvery: 1}, slog.New(slog.DiscardHandler))
	observe := p.Metrics.HTTPRequests("admin")
	observe(t.Context(), "GET /nodes", http.StatusOK, time.Second)
	observe(sampled(t, trace.TraceID{2}), "POST /nodes", http.StatusCreated, time.Second)
	scrape := func(accept string) string {
		r, w := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		p.metricsHandler().ServeHTTP(w, r)
		return w.Body.String()
	}
	open := scrape("application/openmetrics-text;version=1.0.0")
	require.Regexp(t, `gpuaas_http_request_duration_seconds_bucket\{code="201".* # \{trace_id="02000000000000000000000000000000"\} 1`, open)
	require.Equal(t, 1, strings.Count(open, "trace_id"), "a request without a trace has no exemplar")
	plain := scrape("text/plain")
	require.NotContains(t, plain, "trace_id")
	require.Contains(t, plain, `gpuaas_http_request_duration_seconds_count{code="201"`)
}
