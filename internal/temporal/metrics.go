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
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	return sdkotel.NewMetricsHandler(sdkotel.MetricsHandlerOptions{
		Meter: provider.Meter("temporal-sdk-go"), UseMonotonicCounters: true,
		// A metric that cannot be made must not end the process.
		OnError: func(error) {},
	}), nil
}
