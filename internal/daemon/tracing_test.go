package daemon

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// kept is an exporter that keeps its spans.
type kept struct{ spans []sdktrace.ReadOnlySpan }

func (k *kept) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.spans = append(k.spans, spans...)
	return nil
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
