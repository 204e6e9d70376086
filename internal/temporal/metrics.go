package temporal

import (
	"github.com/prometheus/client_golang/prometheus"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.temporal.io/sdk/client"
	sdkotel "go.temporal.io/sdk/contrib/opentelemetry"

	"github.com/gpuaas/gpuaas/schema"
)

// Metrics returns a handler that publishes the SDK's own metrics (temporal_*)
// on the registry.
func Metrics(reg prometheus.Registerer) (client.MetricsHandler, error) {
	exporter, err := otelprom.New(otelprom.WithRegisterer(reg), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "publishing Temporal's metrics")
	}
	// In seconds; the exporter's default bounds are for milliseconds.
	bounds := []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
	provider := metric.NewMeterProvider(metric.WithReader(exporter), metric.WithView(metric.NewView(
		metric.Instrument{Kind: metric.InstrumentKindHistogram},
		metric.Stream{Aggregation: metric.AggregationExplicitBucketHistogram{Boundaries: bounds}},
	)))
	return sdkotel.NewMetricsHandler(sdkotel.MetricsHandlerOptions{
		Meter: provider.Meter("temporal-sdk-go"), UseMonotonicCounters: true,
		// A metric that cannot be created must not end the process.
		OnError: func(error) {},
	}), nil
}
