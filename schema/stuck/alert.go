package stuck

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Alert is a rule of Prometheus.
type Alert struct {
	Name string
	Expr string
	// For is how long the expression must hold.
	For time.Duration
	// Severity is "warning", or "critical" for what keeps the control plane from working.
	Severity string
	// Owner is who must act, Summary what happened, and Command what to type.
	Owner, Summary, Command string
	// Runbook is the page and the section that explain the alert.
	Runbook string
}

// The sections that explain several alerts.
const (
	runbookListed   = "docs/on-call.md#what-is-listed-and-when"
	runbookFaults   = "docs/operating.md#faults-of-the-control-plane"
	runbookRecovery = "docs/health.md#what-stops-repairs"
)

// Alerts returns the alert rules: one of each row of the table, one of all other parks, those of the
// control plane and of health recovery, and one for the objective of each action.
func Alerts() []Alert {
	var alerts []Alert
	var phases []string
	for _, r := range Table() {
		a := Alert{Name: "Gpuaas" + camel(r.Name), Severity: "warning", For: time.Minute, Owner: string(r.WaitingOn), Command: "gpuaas stuck", Runbook: runbookListed}
		switch r.Scope {
		case ScopeOperation:
			if slices.Contains(phases, r.Phase) {
				continue
			}
			phases = append(phases, r.Phase)
			a.Name += "Parked"
			a.Expr = fmt.Sprintf("sum by (phase, reason) (gpuaas_stuck_operations{phase=%q}) > 0", r.Phase)
			a.Summary = fmt.Sprintf("{{ $value }} operations are parked in phase %s ({{ $labels.reason }}). Likely cause: %s.", r.Phase, r.Cause)
		default:
			a.Expr = fmt.Sprintf("sum by (row) (gpuaas_stuck_nodes{row=%q}) > 0", r.Name)
			a.Summary = fmt.Sprintf("{{ $value }} %s %s %s. Likely cause: %s.", subject(r), after(r), r.When, r.Cause)
		}
		alerts = append(alerts, a)
	}
	return slices.Concat(alerts, []Alert{{
		Name: "GpuaasOperationParked", Severity: "warning", For: 5 * time.Minute, Owner: string(lifecycle.AttentionOperator), Command: "gpuaas stuck", Runbook: "docs/on-call.md#reasons",
		Expr:    fmt.Sprintf("sum by (phase, reason) (gpuaas_stuck_operations{phase!~%q,reason!=%q}) > 0", strings.Join(phases, "|"), lifecycle.ReasonApproval),
		Summary: "{{ $value }} operations are parked in phase {{ $labels.phase }} ({{ $labels.reason }}).",
	}}, controlPlane(), recovery(), objectives())
}

// controlPlane returns the alerts about the services and the schedules.
func controlPlane() []Alert {
	owner := string(lifecycle.AttentionOperator)
	return []Alert{
		{Name: "GpuaasMetricsAbsent", Expr: `absent(gpuaas_nodes)`, For: 5 * time.Minute, Severity: "critical", Owner: owner, Command: "gpuaas admin check",
			Runbook: runbookFaults,
			Summary: "No gpuaas-api publishes the gauges of the fleet: no replica runs, or the database does not respond."},
		{Name: "GpuaasDependencyDown", Expr: `gpuaas_dependency_up == 0`, For: 2 * time.Minute, Severity: "critical", Owner: owner, Command: "gpuaas admin check",
			Runbook: runbookFaults,
			Summary: "The dependency {{ $labels.name }} of {{ $labels.instance }} does not respond."},
		{Name: "GpuaasSignerMismatch", Expr: `gpuaas_task_signer_ok == 0`, For: 2 * time.Minute, Severity: "critical", Owner: owner, Command: "gpuaas stuck",
			Runbook: runbookFaults,
			Summary: "{{ $labels.instance }} signs no task: the keys in Vault are not those of the verifier set."},
		{Name: "GpuaasResultsUndelivered", Expr: `gpuaas_outbox_age_seconds > 300`, For: time.Minute, Severity: "critical", Owner: owner, Command: "gpuaas stuck",
			Runbook: runbookFaults,
			Summary: "Results of nodes do not reach Temporal, the oldest for {{ $value | humanizeDuration }}."},
		{Name: "GpuaasOperationAbandoned", Expr: `sum by (action, reason) (increase(gpuaas_abandoned_operations_total[15m])) > 0`, Severity: "warning", Owner: owner, Command: "gpuaas stuck",
			Runbook: "docs/on-call.md#abandoned-operations",
			Summary: "Runs of {{ $labels.action }} ended in Temporal without an outcome ({{ $labels.reason }})."},
		{Name: "GpuaasIdentityAttention", Expr: `sum by (reason) (gpuaas_identity_attention) > 0`, For: time.Minute, Severity: "warning", Owner: owner, Command: "gpuaas stuck",
			Runbook: "docs/operating.md#locked-identities",
			Summary: "{{ $value }} nodes have a locked identity or an alarm about it ({{ $labels.reason }})."},
		{Name: "GpuaasSurplusMachines", Expr: `sum by (provider, class) (gpuaas_surplus_machines) > 0`, For: time.Hour, Severity: "warning", Owner: owner, Command: "gpuaas stuck",
			Runbook: "docs/operating.md#machines-that-no-node-owns",
			Summary: "{{ $value }} machines at {{ $labels.provider }} cost money and no node uses them ({{ $labels.class }})."},
		{Name: "GpuaasOldRecordsKept", Expr: `gpuaas_retention_age_seconds > 86400`, For: time.Hour, Severity: "warning", Owner: owner, Command: "gpuaas stuck",
			Runbook: "docs/operating.md#deleting-old-records",
			Summary: "Old records were last deleted {{ $value | humanizeDuration }} ago, so the database grows."},
		{Name: "GpuaasQueueBacklog", Expr: `max by (tasks) (gpuaas_queue_age_seconds) > 60`, For: 2 * time.Minute, Severity: "critical", Owner: owner, Command: "gpuaas stuck",
			Runbook: runbookFaults,
			Summary: "The oldest {{ $labels.tasks }} task waits for a worker for {{ $value | humanizeDuration }}: no worker polls, or the workers are too slow."},
		{Name: "GpuaasOperationsFail", For: 15 * time.Minute, Severity: "warning", Owner: owner, Command: "gpuaas op list --status failed --since 24h",
			Expr:    `sum by (action) (increase(gpuaas_operations_total{outcome="failed"}[24h])) / sum by (action) (increase(gpuaas_operations_total[24h])) > 0.05 and sum by (action) (increase(gpuaas_operations_total[24h])) > 20`,
			Runbook: "docs/operating.md#objectives",
			Summary: "{{ $value | humanizePercentage }} of the operations {{ $labels.action }} of the last day failed; the objective is 5%."},
	}
}

// recovery returns the alerts about health recovery, which docs/health.md lists.
func recovery() []Alert {
	const status = "gpuaas recovery status"
	owner := string(lifecycle.AttentionOperator)
	return []Alert{
		{Name: "GpuaasBreakerOpen", Expr: `gpuaas_recovery_breaker_open == 1`, For: 5 * time.Minute, Severity: "warning", Owner: owner, Command: status,
			Runbook: runbookRecovery,
			Summary: "No repair starts: many nodes became unhealthy at once, and the breaker is open."},
		{Name: "GpuaasIncident", Expr: `gpuaas_recovery_incidents > 0`, For: 15 * time.Minute, Severity: "warning", Owner: owner, Command: status,
			Runbook: runbookRecovery,
			Summary: "{{ $value }} incidents: faults of many nodes that have one cause, so none of them is repaired."},
		{Name: "GpuaasRepairsBlocked", Expr: `gpuaas_recovery_budget_blocked_nodes > 0`, For: time.Hour, Severity: "warning", Owner: owner, Command: status,
			Runbook: runbookRecovery,
			Summary: "{{ $value }} nodes wait for a budget before their repair."},
		{Name: "GpuaasApprovalAwaited", Expr: `gpuaas_recovery_unapproved_nodes > 0 or sum(gpuaas_stuck_operations{reason="approval"}) > 0`, For: 15 * time.Minute, Severity: "warning", Owner: owner, Command: status,
			Runbook: "docs/on-call.md#approval",
			Summary: "{{ $value }} repairs wait for an approval. They end no work before it, and the nodes stay unhealthy."},
		{Name: "GpuaasRecoveryStopped", Expr: `gpuaas_recovery_round_age_seconds > 300`, For: time.Minute, Severity: "critical", Owner: owner, Command: "gpuaas stuck",
			Runbook: runbookRecovery,
			Summary: "Health recovery last decided {{ $value | humanizeDuration }} ago, so no fault is repaired."},
	}
}

// subject names what a row counts.
func subject(r Row) string {
	if r.Scope == ScopeRequest {
		return "requests have not been claimed"
	}
	return "nodes have been in row " + r.Name
}

func after(r Row) string {
	if r.After == 0 {
		return "after"
	}
	return "for more than " + lifecycle.Span(r.After) + " after"
}

func camel(name string) string { return strings.ToUpper(name[:1]) + name[1:] }
