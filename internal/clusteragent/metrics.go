package clusteragent

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxResults bounds the label result for each node and checker: some reasons are texts of the node.
const maxResults = 16

// The values of labels.
const (
	modeMonitor  = "monitor"
	modeActive   = "active"
	resultOther  = "Other"
	actionReboot = "reboot"
	actionDelete = "delete_node"

	errorState    = "state"    // the program's ConfigMap
	errorAction   = "action"   // an action of the executor
	errorReport   = "report"   // the admin API
	errorNode     = "node"     // a deletion of a Node object
	errorInternal = "internal" // a defect of the program
)

// metrics have the names of Civo's node agent. They are safe for concurrent use.
type metrics struct {
	checks, actions, failures, errors *prometheus.CounterVec
	unhealthy, phase                  *prometheus.GaugeVec
	breaker                           prometheus.Gauge

	mu      sync.Mutex
	results map[[2]string]map[string]bool // by node and checker
}

func newMetrics(reg prometheus.Registerer, version, clusterID string) *metrics {
	f := promauto.With(reg)
	f.NewGaugeVec(prometheus.GaugeOpts{Name: "civo_node_agent_info", Help: "1, with the version of the program and the cluster's ID."},
		[]string{"version", "cluster_id"}).WithLabelValues(version, clusterID).Set(1)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "civo_node_agent_" + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "civo_node_agent_" + name, Help: help}, labels)
	}
	return &metrics{
		checks:    counter("health_check_total", "Checks of nodes, by checker and the reason that it found.", "node", "checker", "result"),
		actions:   counter("recovery_actions_total", "Actions on nodes. In mode monitor, the action was only logged.", "node", "action", "mode"),
		failures:  counter("recovery_failures_total", "Actions on nodes that failed.", "node", "action"),
		errors:    counter("reconcile_errors_total", "Errors of the reconciliation, by cause.", "reason"),
		unhealthy: gauge("node_unhealthy_duration_seconds", "How long the node has been unhealthy; 0 if it is not.", "node"),
		phase:     gauge("recovery_phase", "1 for the node's phase, 0 for the others.", "node", "phase"),
		breaker:   f.NewGauge(prometheus.GaugeOpts{Name: "civo_node_agent_breaker_open", Help: "1 while many unhealthy nodes stop all restarts."}),
		results:   map[[2]string]map[string]bool{},
	}
}

// checked counts a check with its reason, or with resultOther if the reason is no token or the
// checker had too many.
func (m *metrics) checked(node, checker, reason string) {
	m.mu.Lock()
	seen := m.results[[2]string{node, checker}]
	if seen == nil {
		seen = map[string]bool{}
		m.results[[2]string{node, checker}] = seen
	}
	if !text.IsToken(reason, health.MaxReason, "_") || !seen[reason] && len(seen) >= maxResults {
		reason = resultOther
	} else {
		seen[reason] = true
	}
	m.mu.Unlock()
	m.checks.WithLabelValues(node, checker, reason).Inc()
}

// acted counts an action that is about to be done, or only logged.
func (m *metrics) acted(node, action string, monitorOnly bool) {
	mode := modeActive
	if monitorOnly {
		mode = modeMonitor
	}
	m.actions.WithLabelValues(node, action, mode).Inc()
}

// breakerOpen sets the gauge of the breaker.
func (m *metrics) breakerOpen(open bool) {
	if open {
		m.breaker.Set(1)
		return
	}
	m.breaker.Set(0)
}

// state sets the gauges of a node.
func (m *metrics) state(node string, phase health.Phase, unhealthy time.Duration) {
	m.unhealthy.WithLabelValues(node).Set(unhealthy.Seconds())
	for p := health.PhaseUnknown; p <= health.PhaseReplace; p++ {
		value := 0.0
		if p == phase {
			value = 1
		}
		m.phase.WithLabelValues(node, p.String()).Set(value)
	}
}

// forget deletes all series of a node that is gone.
func (m *metrics) forget(node string) {
	of := prometheus.Labels{"node": node}
	m.unhealthy.DeletePartialMatch(of)
	m.phase.DeletePartialMatch(of)
	for _, v := range []*prometheus.CounterVec{m.checks, m.actions, m.failures} {
		v.DeletePartialMatch(of)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.results {
		if key[0] == node {
			delete(m.results, key)
		}
	}
}
