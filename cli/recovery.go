package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newRecovery(e *env) *cobra.Command {
	c := newGroup("recovery", "Show and control health recovery",
		`Health recovery decides about nodes with a fault: which repair each needs, and what stops
it. Its policy begins in the mode monitor, in which decisions are recorded and nothing is
repaired; gpuaas recovery arm lets it start repairs. Every repair is an operation. Changes
of the policy, of the mode and of the breaker require the role admin.`,
		newRecoveryStatus(e), newRecoveryDecisions(e), newRecoveryOutcomes(e), newRecoveryPolicy(e),
		newRecoveryArm(e),
		newRecoveryChange(e, "disarm", "Let health recovery only record what it would do",
			"Stores the policy in use as a new version with the mode monitor. No further repair starts;\nrepairs that run continue.",
			func(ctx context.Context, r record.Change) (record.Policy, error) {
				return decode[record.Policy](e.api().DisarmRecovery(ctx, nil, r))
			}, printPolicyChange),
		newRecoveryBreaker(e), newRecoveryReplay(e))
	return c
}

func newRecoveryStatus(e *env) *cobra.Command {
	return e.command("status", "Show what health recovery does now",
		`Shows the mode of the policy, the breaker, faults of many nodes at once, the budgets that
are in use, and each node that is not healthy: its phase and fault, the first step of its
repair, and what stops the repair.`,
		"  gpuaas recovery status\n  gpuaas recovery status -o json | jq -r '.nodes[] | select(.brake) | .host'",
		func(ctx context.Context, _ string) error {
			st, err := decode[record.Status](e.api().GetRecovery(ctx, nil))
			if err != nil {
				return err
			}
			return printRecovery(e.console, st)
		})
}

func printRecovery(e *console, st record.Status) error {
	now := e.clock.now()
	return e.print(st, func(w io.Writer) {
		fields(w, "Mode:", string(st.Policy.Mode), "Policy:", policyText(st.Policy), "Last round:", since(now, st.DecidedAt), "Breaker:", breakerText(now, st.Breaker),
			"Fault:", clean(st.PolicyFault))
		for _, i := range st.Incidents {
			fields(w, "Incident:", clean(i.Why))
		}
		for _, b := range st.Budgets {
			fields(w, "Budget:", budgetText(b, st.PolicyFault == ""))
		}
		if len(st.Nodes) == 0 {
			fmt.Fprintln(w, "No node has a fault.")
			return
		}
		fmt.Fprintln(w)
		row(w, "NODE", "PHASE", "SINCE", "FAULT", "REPAIR", "STOPPED BY", "WHY")
		for _, n := range st.Nodes {
			row(w, n.Host, n.Phase.String(), lifecycle.Span(now.Sub(n.PhaseSince)), dash(faultText(n.Fault)), dash(string(n.Rung)), dash(string(n.Brake)), whyStopped(st, n))
		}
	}, hostsOf(st.Nodes)...)
}

// whyStopped is why nothing repairs a node. What the lines above the table say is not repeated for each node.
func whyStopped(st record.Status, n record.NodeState) string {
	switch {
	case n.Brake == recovery.BrakeBreaker && !st.Breaker.OpenSince.IsZero():
		return "see Breaker"
	case slices.ContainsFunc(st.Incidents, func(i recovery.Incident) bool { return i.Why == n.Why }):
		return "see Incident"
	}
	return clean(n.Why)
}

func hostsOf(nodes []record.NodeState) (hosts []string) {
	for _, n := range nodes {
		hosts = append(hosts, n.Host)
	}
	return hosts
}

func policyText(p record.Policy) string {
	if p.Version == 0 {
		return "the default policy"
	}
	return fmt.Sprintf("version %d, by %s at %s: %s", p.Version, p.Actor, p.At.UTC().Format(time.RFC3339), clean(p.Reason))
}

// since is the age of a time, "never" for the zero time.
func since(now, at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return lifecycle.Span(now.Sub(at)) + " ago"
}

func breakerText(now time.Time, b recovery.BreakerState) string {
	switch {
	case b.OpenSince.IsZero():
		return "closed"
	case b.Probing != "":
		return fmt.Sprintf("half-open for %s, with the repair of one node: %s", lifecycle.Span(now.Sub(b.OpenSince)), clean(b.Why))
	}
	return fmt.Sprintf("open for %s: %s", lifecycle.Span(now.Sub(b.OpenSince)), clean(b.Why))
}

// budgetText describes the use of a budget. known is false if the policy with the limits cannot be read.
func budgetText(b record.Budget, known bool) string {
	use := fmt.Sprintf("%d in use", b.Busy)
	switch {
	case b.Limit != nil:
		use = fmt.Sprintf("%d of %d in use", b.Busy, *b.Limit)
	case known:
		use += ", no limit"
	}
	if b.Out > 0 {
		use += fmt.Sprintf(", %d quarantined by repairs", b.Out)
	}
	return fmt.Sprintf("%s: %s, %s", strings.TrimSpace(string(b.Scope)+" "+b.Key), use, text.Count(b.Nodes, "node"))
}

// faultText names a fault, for example "gpu_xid XID 79 on GPU-1".
func faultText(f recovery.Fault) string {
	if f.Checker == "" {
		return ""
	}
	s := f.Checker + " " + f.Reason
	if f.Code != 0 {
		s += " " + strconv.Itoa(f.Code)
	}
	if f.Component != "" {
		s += " on " + f.Component
	}
	return clean(s)
}

func newRecoveryDecisions(e *env) *cobra.Command {
	var q adminclient.ListRecoveryDecisionsParams
	var limit uint
	c := e.command("decisions", "List the decisions about nodes with a fault",
		`Lists the decisions, newest first. A decision is listed when its phase, fault, repair,
brake or mode differs from the node's previous one. In the mode monitor, a decision is what
the policy would have done.`,
		"  gpuaas recovery decisions --node gpu-17\n  gpuaas recovery decisions --since 24h -o json",
		func(ctx context.Context, _ string) error {
			all, err := listDecisions(ctx, e.api(), q, limit)
			if err != nil {
				return err
			}
			return printList(e.console, listing[record.Decision]{
				object: record.Decisions{Decisions: all}, rows: all, empty: "no decision matches",
				header: []string{"TIME", "NODE", "PHASE", "FAULT", "REPAIR", "STOPPED BY", "MODE", "WHY", "POLICY", "OPERATION", "ID"}, wide: 3,
				cells: func(d record.Decision) []string {
					return []string{d.At.UTC().Format(time.RFC3339), d.Host, d.Phase.String(), dash(faultText(d.Fault)), dash(string(d.Rung)), dash(string(d.Brake)),
						string(d.Mode), clean(d.Why), strconv.FormatInt(d.PolicyVersion, 10), dash(d.OperationID), d.DecisionID}
				},
				name: func(d record.Decision) string { return d.DecisionID },
			})
		})
	e.addNode(c, &q.Node, "only decisions about this `NODE`")
	addSince(c, &q.Since, "decisions")
	c.Flags().UintVar(&limit, "limit", wire.DefaultPage, "list the newest N; 0 for all")
	return c
}

// listDecisions returns the newest decisions of health recovery that match, all of them for a limit of 0.
func listDecisions(ctx context.Context, api *adminclient.Client, q adminclient.ListRecoveryDecisionsParams, limit uint) ([]record.Decision, error) {
	return pages(limit, func(size *int, token *string) ([]record.Decision, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[record.Decisions](api.ListRecoveryDecisions(ctx, &q))
		return list.Decisions, list.NextPageToken, err
	})
}

func newRecoveryOutcomes(e *env) *cobra.Command {
	q := adminclient.GetRecoveryFactsParams{Since: given("720h")}
	c := e.command("outcomes", "Count how repairs ended",
		`Counts the repairs that ended by fault, SKU and rung: how many cured the fault, did not
cure it, or failed, and of how many the effect is not known. Without --since, those of the
last 30 days.`,
		"  gpuaas recovery outcomes\n  gpuaas recovery outcomes --since 2160h -o json",
		func(ctx context.Context, _ string) error {
			f, err := decode[record.Facts](e.api().GetRecoveryFacts(ctx, &q))
			if err != nil {
				return err
			}
			if f.Truncated {
				e.message("warning: there are more repairs than the admin API returns; older ones are not counted")
			}
			all := append([]recovery.OutcomeCount{}, recovery.Outcomes(f.Attempts)...)
			return printList(e.console, listing[recovery.OutcomeCount]{
				object: outcomes{all}, rows: all, empty: "no repair ended",
				header: []string{"FAULT", "SKU", "REPAIR", "CURED", "NOT CURED", "FAILED", "UNKNOWN"},
				cells: func(o recovery.OutcomeCount) []string {
					return []string{dash(faultText(recovery.Fault{Checker: o.Checker, Reason: o.Reason, Code: o.Code})), dash(o.SKU), string(o.Rung),
						strconv.Itoa(o.Cured), strconv.Itoa(o.NotCured), strconv.Itoa(o.Failed), strconv.Itoa(o.Unknown)}
				},
				name: func(o recovery.OutcomeCount) string {
					return faultText(recovery.Fault{Checker: o.Checker, Reason: o.Reason, Code: o.Code})
				},
			})
		})
	addSince(c, &q.Since, "repairs")
	return c
}

// outcomes is the object of gpuaas recovery outcomes.
type outcomes struct {
	Outcomes []recovery.OutcomeCount `json:"outcomes"`
}

// newRecoveryChange is a command that changes something with a reason and prints the result.
func newRecoveryChange[T any](e *env, use, short, long string, send func(context.Context, record.Change) (T, error), show func(*console, T) error) *cobra.Command {
	var r record.Change
	var c *cobra.Command
	c = e.command(use, short, long, "  gpuaas recovery "+use+" --reason CHG-204", func(ctx context.Context, _ string) error {
		if err := checkReason(c.CommandPath(), r.Reason, true); err != nil {
			return err
		}
		v, err := send(ctx, r)
		if err != nil {
			return err
		}
		return show(e.console, v)
	})
	c.Flags().StringVar(&r.Reason, "reason", "", "reason, kept in the audit trail (required)")
	return c
}

func newRecoveryBreaker(e *env) *cobra.Command {
	c := newRecoveryChange(e, "close", "Close the breaker",
		"Closes the breaker, so that repairs start again. Faults that began before do not open it\nagain. Remove the cause first: gpuaas recovery status names it.",
		func(ctx context.Context, r record.Change) (recovery.BreakerState, error) {
			return decode[recovery.BreakerState](e.api().CloseRecoveryBreaker(ctx, nil, r))
		},
		func(e *console, b recovery.BreakerState) error {
			return e.print(b, func(w io.Writer) {
				at := "-" // it was never open
				if !b.ClosedAt.IsZero() {
					at = e.stamp(b.ClosedAt)
				}
				fields(w, "Breaker:", breakerText(e.clock.now(), b), "At:", at, "Why:", dash(clean(b.Why)))
			})
		})
	c.Example = "  gpuaas recovery breaker close --reason 'switch replaced'"
	return newGroup("breaker", "Control the breaker of health recovery",
		"The breaker stops repairs if many nodes become unhealthy at once. It closes after the repair\nof one node is verified, or with gpuaas recovery breaker close.", c)
}
