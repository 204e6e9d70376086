package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/text"
)

func newTemplateDrift(e *env) *cobra.Command {
	return e.command("drift", "Count how nodes differ from their templates",
		`Counts the differences between nodes and their templates, those of most nodes first, as the
last scan recorded them. Scans follow each other every 10 minutes. Text in quotes was
reported by nodes: it is not verified. Signals of the type instance.drift name the nodes.`,
		"  gpuaas template drift\n  gpuaas template drift -o json | jq .nodes",
		func(ctx context.Context, _ string) error {
			fleet, err := decode[template.Fleet](e.api().GetFleetDrift(ctx, nil))
			if err != nil {
				return err
			}
			if fleet.Nodes > 0 {
				e.message("%s from their template", differ(fleet.Nodes))
			}
			return printList(e.console, listing[template.Count]{
				object: fleet, rows: fleet.Counts, empty: "the last scan found no node that differs from its template; the next one is within 10 minutes",
				header: []string{"NODES", "TEMPLATE", "VERSION", "CHANGE", "ARTIFACT", "DECLARED", "REPORTED"},
				cells: func(c template.Count) []string {
					return []string{strconv.FormatInt(c.Nodes, 10), c.Template, strconv.FormatInt(c.Version, 10), c.Change, c.Name, dash(c.Declared), reported(c.Reported)}
				},
				name: func(c template.Count) string { return c.Template + " " + c.Change + " " + clean(c.Name) },
			})
		})
}

func differ(nodes int64) string {
	if nodes == 1 {
		return "1 node differs"
	}
	return text.Count(int(nodes), "node") + " differ"
}

// reported is a version that a node reported.
func reported(version string) string {
	if version == "" {
		return "-"
	}
	return strconv.Quote(version)
}

func newNodeDrift(e *env) *cobra.Command {
	o := lifecycleOptions{wait: true}
	var remediate bool
	var c *cobra.Command
	c = e.command("drift NODE", "Compare a node with its template",
		`Compares what a node reports with its template: declared artifacts that it does not have
(attach), managed ones that are not declared (detach), and those in another version
(update), each with the next step. Text in quotes was reported by the node: it is not
verified. NODE is also the ID of a live instance.

With --remediate, the command starts the operation that corrects a part of the drift: the
upgrade of an agent that is older than declared. What else differs stays.`,
		"  gpuaas node drift gpu-17\n  gpuaas node drift gpu-17 -o json | jq '.drift, .update'\n  gpuaas node drift gpu-17 --remediate --reason CHG-204",
		func(ctx context.Context, node string) error {
			if !remediate && (o.noWait || o.reason != "") {
				return usagef(c.CommandPath(), "--no-wait and --reason are for --remediate")
			}
			r, err := decode[template.Report](e.api().GetDrift(ctx, node, nil))
			if err != nil {
				return err
			}
			if !remediate {
				return e.print(r, func(w io.Writer) { writeDrift(e.console, w, r) }, r.Host)
			}
			if r.Upgrade == "" {
				return usagef(c.CommandPath(), "--remediate: no operation corrects the drift of %s; see: gpuaas node drift %[1]s", r.Host)
			}
			o.options.AgentVersion = r.Upgrade
			if o.reason == "" {
				o.reason = fmt.Sprintf("differs from template %s version %d", r.Template, r.Version)
			}
			return runLifecycle(ctx, e, r.Host, lifecycle.ActionUpgradeAgent, o)
		})
	f := c.Flags()
	f.BoolVar(&remediate, "remediate", false, "start the operation that corrects a part of the drift")
	f.BoolVar(&o.noWait, "no-wait", false, "with --remediate: return as soon as the operation is accepted")
	f.StringVar(&o.reason, "reason", "", "with --remediate: reason, kept in the audit trail (default: the template and its version)")
	return c
}

// writeDrift shows how a node differs from its template.
func writeDrift(e *console, w io.Writer, r template.Report) {
	of := "none"
	if r.Template != "" {
		of = fmt.Sprintf("%s version %d, policy %s", r.Template, r.Version, r.Policy)
	}
	fields(w, "Node:", r.Host, "Template:", of, "Status:", string(r.Status), "  Since:", e.stampIf(r.Since), "Reported:", e.stampIf(r.ReportedAt))
	for _, c := range []struct {
		label string
		list  []template.Difference
	}{{"Attach:", r.Attach}, {"Detach:", r.Detach}, {"Update:", r.Update}} {
		label := c.label
		for _, x := range c.list {
			line := x.Name
			if x.Declared != "" {
				line += ": declared " + x.Declared
			}
			if x.Reported != "" {
				line += ", reported " + reported(x.Reported)
			}
			row(w, label, line)
			row(w, "", "next: "+x.Next)
			label = ""
		}
	}
	fields(w, "Unknown:", strings.Join(r.Unknown, ", "), "Remedy:", r.Remedy, "  Refused:", r.RemedyRefused, "Next:", r.Next)
}

// writeTemplate shows in two lines whether a node differs from its template, and nothing without one.
func writeTemplate(w io.Writer, r template.Report) {
	if r.Template == "" {
		return
	}
	next := ""
	if r.Status != template.StatusInSync {
		next = "gpuaas node drift " + r.Host
	}
	is := string(r.Status)
	if r.Drifted {
		is += ": " + r.Drift.String()
	}
	fields(w, "Template:", fmt.Sprintf("%s version %d, %s", r.Template, r.Version, is), "  Next:", next)
}
