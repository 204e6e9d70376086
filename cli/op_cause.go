package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
)

func newOpCause(e *env) *cobra.Command {
	lookback := cause.Lookback
	c := e.command("cause NODE", "Rank the possible causes of what keeps a node from working",
		`Reads what the control plane has about a node: its heartbeats, its certificate, its lock,
its neighbors, its provider, the faults of the services and what changed. It prints the
possible causes of the park of the node's operation, or of the node's silence, with the
facts behind each. The confidence orders the causes; it is not a measured probability. The
command changes nothing.

A worker finds the cause of each park within a minute as well, and also asks the provider.
"gpuaas op show" prints it.`,
		"  gpuaas op cause gpu-17\n  gpuaas op cause gpu-17 --lookback 72h\n  gpuaas op cause gpu-17 -o json | jq -r .top_candidate",
		func(ctx context.Context, arg string) error {
			if lookback < time.Hour || lookback > cause.MaxLookback {
				return usagef("gpuaas op cause", "--lookback must be 1h to %s", lifecycle.Span(cause.MaxLookback))
			}
			r, err := decode[cause.Report](e.api().GetNodeCause(ctx, arg, &adminclient.GetNodeCauseParams{LookbackHours: new(int(lookback / time.Hour))}))
			if err != nil {
				return err
			}
			return e.print(r, func(w io.Writer) { writeCause(w, r) }, r.TopCandidate)
		})
	c.Flags().DurationVar(&lookback, "lookback", lookback, "read changes of the last `DURATION`, in hours")
	return c
}

// writeCause prints a probable cause with its probes.
func writeCause(w io.Writer, r cause.Report) {
	writeCandidates(w, r)
	if len(r.Candidates) == 0 {
		row(w, "No probe found a cause.")
	}
	fmt.Fprintln(w)
	row(w, "RESULT", "PROBE", "ANSWER")
	for _, c := range r.Probes {
		row(w, string(c.Result), c.Name, dash(clean(c.Answer)))
		if c.Result == diagnosis.Failed {
			row(w, "", "next:", clean(c.Next))
		}
	}
	if len(r.Changes) == 0 {
		return
	}
	fmt.Fprintln(w)
	row(w, "CHANGED", "ACTION", "BY", "SCOPE", "DETAIL")
	for _, c := range r.Changes {
		row(w, c.At.UTC().Format(time.RFC3339), c.Action, clean(c.Actor), c.Scope, dash(clean(c.Detail)))
	}
}

// writeCandidates prints the possible causes, the most probable first.
func writeCandidates(w io.Writer, r cause.Report) {
	for i, c := range r.Candidates {
		label := "Or:"
		if i == 0 {
			label = "Probable cause:"
		}
		row(w, label, fmt.Sprintf("%s (%s, confidence %.2f)", clean(c.Summary), c.Cause, c.Confidence))
		for _, fact := range c.Reasoning {
			row(w, "", "because "+clean(fact))
		}
		row(w, "", fmt.Sprintf("owner: %s; next: %s", c.Owner, clean(c.Next)))
	}
}

func newCapacity(e *env) *cobra.Command {
	var p adminclient.ListCapacityParams
	var sku, region string
	c := e.command("capacity", "Count free and busy nodes by SKU and region",
		`Counts the nodes of each SKU and region: free nodes are active, are not cordoned, send
heartbeats, and have neither a workload nor a fault that needs a repair. It recommends
what gives more capacity.`,
		"  gpuaas capacity\n  gpuaas capacity --sku h100 --region fra1",
		func(ctx context.Context, _ string) error {
			p.Sku, p.Region = given(sku), given(region)
			list, err := decode[insight.CapacityList](e.api().ListCapacity(ctx, &p))
			if err != nil {
				return err
			}
			return printList(e.console, listing[insight.Capacity]{
				object: list, rows: list.Capacity, empty: "no node matches",
				header: []string{"SKU", "REGION", "NODES", "FREE", "BUSY", "OUT", "GPUS FREE", "RECOMMENDATION"},
				cells: func(c insight.Capacity) []string {
					return []string{c.SKU, c.Region, fmt.Sprint(c.Nodes), fmt.Sprint(c.Free), fmt.Sprint(c.Busy), fmt.Sprint(c.Out), fmt.Sprint(c.GPUsFree), c.Recommendation}
				},
				name: func(c insight.Capacity) string { return c.SKU + "/" + c.Region },
			})
		})
	c.Flags().StringVar(&sku, "sku", "", "only nodes of this `SKU`")
	c.Flags().StringVar(&region, "region", "", "only nodes of this `REGION`")
	return c
}

func newNodeRunbook(e *env) *cobra.Command {
	var p adminclient.GetNodeRunbookParams
	cve := ""
	c := e.command("runbook NODE", "Print what to do about a node, step by step",
		`Prints the steps for what keeps a node from working, in order: the probable causes, the
faults that the probes found, the decisions that a parked operation offers, the least
harmful first, and the check at the end.

With --cve it prints the steps for a vulnerability. Whether it affects the node is not
known: agents report no list of software, and no feed of vulnerabilities is configured.
The field needs says so.`,
		"  gpuaas node runbook gpu-17\n  gpuaas node runbook gpu-17 --cve CVE-2026-1234",
		func(ctx context.Context, arg string) error {
			p.Cve = given(cve)
			b, err := decode[insight.Runbook](e.api().GetNodeRunbook(ctx, arg, &p))
			if err != nil {
				return err
			}
			return e.print(b, func(w io.Writer) { writeRunbook(w, b) }, b.Host)
		})
	c.Flags().StringVar(&cve, "cve", "", "the `ID` of a vulnerability")
	return c
}

func writeRunbook(w io.Writer, b insight.Runbook) {
	fmt.Fprintf(w, "%s: %s\n", b.Host, clean(b.Summary))
	for i, s := range b.Steps {
		fmt.Fprintf(w, "\n%d. %s\n   owner: %s, harm: %s\n   %s\n", i+1, clean(s.Title), s.Owner, s.Harm, clean(preview.Fill(s.Command, b.Host)))
	}
	for _, n := range b.Needs {
		fmt.Fprintf(w, "\nneeds: %s\n", clean(n))
	}
}
