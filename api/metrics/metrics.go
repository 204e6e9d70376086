// Package metrics declares the metrics of gpuaas-api: counters that the handlers
// feed (Metrics) and gauges read from the database (FleetCollector). Metrics that
// several programs share are in internal/daemon.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// ResultIssued is the result of a certificate request that succeeded. Rejections are
// counted by their kind.
const ResultIssued = "issued"

// Metrics are the API's own counters. All methods are safe for concurrent use.
type Metrics struct {
	waiting    prometheus.Gauge
	dispatch   prometheus.Histogram
	withheld   prometheus.Counter
	leaseKey   prometheus.Gauge
	tokens     prometheus.Gauge
	issued     map[trust.IssueMethod]*prometheus.CounterVec
	budget     *prometheus.CounterVec
	budgetLeft prometheus.Gauge
	limited    *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	anonymous  *prometheus.CounterVec
	tasks      *prometheus.CounterVec
	outbox     *prometheus.CounterVec
}

// New registers the metrics. It panics if reg already has one of them.
func New(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		waiting: gauge("gpuaas_waiting_agents", "Open long polls of node agents."),
		dispatch: f.NewHistogram(prometheus.HistogramOpts{
			Name: "gpuaas_task_dispatch_seconds", Help: "Time from a task's creation to its first dispatch to the node.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300}}),
		withheld: f.NewCounter(prometheus.CounterOpts{
			Name: "gpuaas_tasks_withheld_total", Help: "Polls that skipped dispatch because no lease grant could be signed."}),
		leaseKey: gauge("gpuaas_lease_key_ok", "1 when Vault signed this process's lease key at the last attempt, else 0."),
		tokens:   gauge("gpuaas_admin_tokens_ok", "1 when the newest version of the tokens file is in use, 0 when an older one is because the newest is not valid."),
		issued: map[trust.IssueMethod]*prometheus.CounterVec{
			trust.IssuedByEnroll:  counters("gpuaas_enrollments_total", "Enrollment requests by result: issued, or the refusal's code.", "result"),
			trust.IssuedByRenew:   counters("gpuaas_renewals_total", "Certificate renewal requests by result: issued, or the refusal's code.", "result"),
			trust.IssuedByRecover: counters("gpuaas_recoveries_total", "Identity recovery requests by result: issued, or the refusal's code.", "result"),
		},
		budget:     counters("gpuaas_issue_budget_total", "Certificate requests to the issuance budget, by priority and outcome: granted or refused.", "priority", "outcome"),
		budgetLeft: gauge("gpuaas_issue_budget_left", "Certificates that the issuance budget allowed after its last decision, at the highest priority."),
		limited:    counters("gpuaas_node_api_limited_total", "Requests to the node API refused by a rate limit.", "limit"),
		refusals:   counters("gpuaas_identity_refusals_total", "Requests refused because of the caller's identity, by reason.", "reason"),
		anonymous: counters("gpuaas_unauthenticated_refusals_total",
			"Refused enrollments, recoveries and bundle requests that no token or key authenticated, by reason.", "reason"),
		tasks:  counters("gpuaas_tasks_total", "Node tasks that ended, by type and outcome.", "type", "outcome"),
		outbox: counters("gpuaas_outbox_messages_total", "Delivery attempts of messages to Temporal, by kind and outcome.", "kind", "outcome"),
	}
	m.startAtZero()
	return m
}

// startAtZero creates the series that alerts watch before their first event, so
// that a rate includes it.
func (m *Metrics) startAtZero() {
	for _, reason := range []string{schema.ReasonNoCertificate, schema.ReasonUnknownIssuer, schema.ReasonIssuerRetired, schema.ReasonExpired,
		schema.ReasonSerialSuperseded, schema.ReasonNodeLocked, schema.ReasonNodeRemoved, schema.ReasonIdentityMismatch, schema.ReasonResultSignature} {
		m.refusals.WithLabelValues(reason)
	}
	for _, result := range []string{ResultIssued, string(schema.KindInvalidRequest), string(schema.KindUnauthenticated),
		string(schema.KindTokenConsumed), string(schema.KindTokenExpired), string(schema.KindInvalidNodeIdentity),
		string(schema.KindRateLimited), string(schema.KindServiceUnavailable), string(schema.KindInternal)} {
		for _, c := range m.issued {
			c.WithLabelValues(result)
		}
	}
	for _, limit := range []string{"node", "remote", "site", "renewal", "node_requests", "node_bytes", "node_in_flight",
		"connections", "address_connections", "node_connections", "downloads"} {
		m.limited.WithLabelValues(limit)
	}
	for _, priority := range []string{"recovery", "urgent", "other"} {
		for _, outcome := range []string{budgetGranted, budgetRefused} {
			m.budget.WithLabelValues(priority, outcome)
		}
	}
}

// PollOpened counts an open long poll until the returned function is called.
func (m *Metrics) PollOpened() (closed func()) {
	m.waiting.Inc()
	return m.waiting.Dec
}

// Dispatched records a task's first dispatch, waited after its creation.
func (m *Metrics) Dispatched(waited time.Duration) {
	m.dispatch.Observe(max(0, waited.Seconds()))
}

// Withheld counts a poll that skipped dispatch.
func (m *Metrics) Withheld() { m.withheld.Inc() }

// LeaseKey sets whether Vault signed this process's lease key.
func (m *Metrics) LeaseKey(ok bool) { set(m.leaseKey, ok) }

// AdminTokens sets whether the newest version of the tokens file is in use.
func (m *Metrics) AdminTokens(ok bool) { set(m.tokens, ok) }

func set(g prometheus.Gauge, ok bool) {
	g.Set(0)
	if ok {
		g.Set(1)
	}
}

// TaskEnded counts a stored result.
func (m *Metrics) TaskEnded(t task.Type, s task.Status) {
	m.tasks.WithLabelValues(string(t), string(s)).Inc()
}

// Outcomes of the issuance budget.
const (
	budgetGranted = "granted"
	budgetRefused = "refused"
)

// Issued counts a certificate request. err is nil when a certificate was issued.
func (m *Metrics) Issued(via trust.IssueMethod, err error) {
	result := ResultIssued
	if err != nil {
		result = string(schema.KindOf(err))
	}
	if c, ok := m.issued[via]; ok {
		c.WithLabelValues(result).Inc()
	}
}

// Budget counts a decision of the issuance budget and sets its remaining tokens.
func (m *Metrics) Budget(priority string, granted bool, left float64) {
	outcome := budgetRefused
	if granted {
		outcome = budgetGranted
	}
	m.budget.WithLabelValues(priority, outcome).Inc()
	m.budgetLeft.Set(left)
}

// Limited counts a request over the limit of a node or a remote address.
func (m *Metrics) Limited(limit string) { m.limited.WithLabelValues(limit).Inc() }

// IdentityRefused counts a rejected identity.
func (m *Metrics) IdentityRefused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// UnauthenticatedRefused counts a refused request without an identity.
func (m *Metrics) UnauthenticatedRefused(reason string) { m.anonymous.WithLabelValues(reason).Inc() }

// Relayed counts one attempt to deliver a message: delivered, orphaned or failed.
func (m *Metrics) Relayed(kind, outcome string) { m.outbox.WithLabelValues(kind, outcome).Inc() }
