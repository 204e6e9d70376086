package stuck

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// objectives returns an alert for each action: of the operations that ended in the last day, at least 95 %
// took no longer than the budgets of their phases. A time in which an operation was parked counts. An alert
// needs 20 operations, so that a single one does not fire it.
func objectives() []Alert {
	var alerts []Alert
	for _, p := range lifecycle.Operations() {
		limit := p.Objective()
		took := fmt.Sprintf("gpuaas_operation_duration_seconds_bucket{action=%q,le=~\"%d([.]0)?\"}", p.Action, int(limit.Seconds()))
		all := fmt.Sprintf("gpuaas_operation_duration_seconds_count{action=%q}", p.Action)
		alerts = append(alerts, Alert{
			Name: "GpuaasSlow" + words(string(p.Action)), For: 15 * time.Minute, Severity: "warning", Owner: string(lifecycle.AttentionOperator),
			Command: "gpuaas op list --since 24h", Runbook: "docs/operating.md#objectives",
			Expr: fmt.Sprintf("1 - sum(increase(%s[24h])) / sum(increase(%s[24h])) > 0.05 and sum(increase(%s[24h])) > 20", took, all, all),
			Summary: fmt.Sprintf("{{ $value | humanizePercentage }} of the operations %s of the last day took longer than %s; the objective is 5%%.",
				p.Action, lifecycle.Span(limit)),
		})
	}
	return alerts
}

// words joins the words of an action, each with a capital letter.
func words(action string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(action, "-") {
		b.WriteString(camel(word))
	}
	return b.String()
}
