package daemon

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuaas/gpuaas/schema/version"
)

// Metrics are the metrics that more than one program publishes. All methods are
// safe for concurrent use.
type Metrics struct {
	vault  *prometheus.HistogramVec
	signer prometheus.Gauge
	login  prometheus.Gauge
	http   *prometheus.HistogramVec
}

// newRegistry returns a registry with the runtime's metrics and build_info.
func newRegistry() *prometheus.Registry {
	reg, info := prometheus.NewRegistry(), version.Read()
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: "gpuaas_build_info", Help: "1, with the build in the labels.",
		ConstLabels: prometheus.Labels{"version": info.Version, "revision": info.Commit, "goversion": info.Go}}).Set(1)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

func newMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		vault: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuaas_vault_request_duration_seconds", Help: "Duration of requests to Vault, by operation.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}}, []string{"op"}),
		signer: f.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_task_signer_ok", Help: "1 when Vault's task key matched the newest verifier set at the last check; 0 when it did not, or was not checked yet."}),
		login: f.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_vault_secret_id_expiry_seconds", Help: "Remaining life of the process's Vault secret ID, checked about once an hour; 0 if it has no end."}),
		http: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuaas_http_request_duration_seconds", Help: "Duration of HTTP requests, by listener, route and status code. Long polls are included.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 30, 60}}, []string{"listener", "route", "code"}),
	}
}

// detach removes the gauges about Vault and the verifier sets, for a program that uses neither.
func (m *Metrics) detach(reg prometheus.Registerer) {
	reg.Unregister(m.signer)
	reg.Unregister(m.login)
}

// VaultRequest records a request to Vault.
func (m *Metrics) VaultRequest(op string, took time.Duration, _ error) {
	m.vault.WithLabelValues(op).Observe(took.Seconds())
}

// SecretIDEnds records the remaining life of the Vault login's secret ID.
func (m *Metrics) SecretIDEnds(left time.Duration) { m.login.Set(left.Seconds()) }

// SignerChecked records whether Vault's task key matches the newest verifier set.
func (m *Metrics) SignerChecked(ok bool) { m.signer.Set(asFloat(ok)) }

// HTTPRequests returns the observer of a listener's requests. route is a path
// template with its method, never the requested path.
func (m *Metrics) HTTPRequests(listener string) func(ctx context.Context, route string, status int, took time.Duration) {
	return func(ctx context.Context, route string, status int, took time.Duration) {
		Observe(ctx, m.http.WithLabelValues(listener, route, strconv.Itoa(status)), took)
	}
}

// Observe records a duration. If ctx has a span that is exported, its trace is the exemplar, so that a
// dashboard can link a slow request to its trace.
func Observe(ctx context.Context, o prometheus.Observer, took time.Duration) {
	span := trace.SpanContextFromContext(ctx)
	if e, ok := o.(prometheus.ExemplarObserver); ok && span.IsSampled() {
		e.ObserveWithExemplar(took.Seconds(), prometheus.Labels{labelTrace: span.TraceID().String()})
		return
	}
	o.Observe(took.Seconds())
}
