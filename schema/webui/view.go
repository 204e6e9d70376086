// Package webui names the lists of operations in Temporal's Web UI.
package webui

import (
	"fmt"
	"net/url"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// View is a filtered list of Temporal's Web UI.
type View struct {
	// Title describes the list.
	Title string
	// Query is the list's filter in Temporal's query language.
	Query string
}

// Views returns the lists that show what needs attention, the widest first.
func Views() []View {
	waiting := func(a lifecycle.Attention) View {
		return View{"waiting on " + string(a), fmt.Sprintf("ExecutionStatus = %q AND %s = %q", "Running", lifecycle.AttrAttention, a)}
	}
	return []View{
		{"all parked operations", fmt.Sprintf("ExecutionStatus = %q AND %s IS NOT NULL", "Running", lifecycle.AttrStuckReason)},
		waiting(lifecycle.AttentionOperator), waiting(lifecycle.AttentionAgent), waiting(lifecycle.AttentionProvider),
		waiting(lifecycle.AttentionCompensation),
	}
}

// NodeView returns the list of a node's operations.
func NodeView(host string) View {
	return View{"operations of " + host, fmt.Sprintf("%s = %q", lifecycle.AttrHost, host)}
}

// URL returns the list's page. workflows is the page of all workflows in the Web UI:
// BASE/namespaces/NAMESPACE/workflows.
func (v View) URL(workflows string) string {
	return workflows + "?query=" + url.QueryEscape(v.Query)
}
