package console

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// option is a decision that a parked operation offers, with the page that asks for its reason.
// Link is empty if only the command line can do it, or the subject may not.
type option struct {
	lifecycle.Option

	Link string
	// Needs is the role that the subject lacks, empty if it has it.
	Needs trust.Role
}

// optionsOf returns the options of a park, the least harmful first.
func optionsOf(r *request, operationID, host string, s lifecycle.Stuck) (out []option) {
	for _, o := range s.Options {
		o.Command = preview.Fill(o.Command, host)
		out = append(out, option{Option: o, Link: linkOf(operationID, host, s, o), Needs: lacks(r, o.Decision)})
	}
	return out
}

// linkOf returns the page of a decision. The page is addressed to the park, so that nothing
// happens if the operation has left it meanwhile.
func linkOf(operationID, host string, s lifecycle.Stuck, o lifecycle.Option) string {
	words := strings.Fields(o.Command)
	switch {
	case o.Decision == lifecycle.DecisionResume && len(words) > 3:
		return Prefix + "/tasks/" + url.PathEscape(words[3]) + "/resume"
	case o.Decision == lifecycle.DecisionRehydrate:
		return nodeLink(host, string(o.Decision))
	case !slices.Contains(lifecycle.Decisions(), o.Decision):
		return ""
	}
	q := url.Values{"phase": {s.Phase}, "since": {s.Since.UTC().Format(time.RFC3339Nano)}}
	return Prefix + "/operations/" + operationID + "/" + string(o.Decision) + "?" + q.Encode()
}

// lacks returns the role that a decision needs, if the subject does not have it.
func lacks(r *request, d lifecycle.Decision) trust.Role {
	if need := d.Role(); !r.May(need) {
		return need
	}
	return ""
}

// numberOf returns the number of an operation's phase in its plan and the number of phases, or
// zeros if the plan depends on options that a list does not have.
func numberOf(o wire.OperationSummary) (number, all int) {
	phases := lifecycle.PhasesOf(o.Action, lifecycle.Options{})
	creates := slices.ContainsFunc(phases, func(p lifecycle.PhaseSpec) bool { return p.OnCreate })
	i := slices.IndexFunc(phases, func(p lifecycle.PhaseSpec) bool { return p.Name == o.Phase })
	if i < 0 || creates || o.Action == lifecycle.ActionRecover {
		return 0, 0
	}
	return i + 1, len(phases)
}
