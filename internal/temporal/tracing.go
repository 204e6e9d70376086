package temporal

import (
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
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
		DisableQueryTracing: true, DisableBaggage: true, AllowInvalidParentSpans: true})
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "tracing Temporal")
	}
	opts.Interceptors = append(opts.Interceptors, i)
	return nil
}
