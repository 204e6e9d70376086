package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/text"
)

// newNodeRMA makes the command that shows the evidence of a node for its vendor.
func newNodeRMA(e *env) *cobra.Command {
	return e.command("rma NODE", "Show the evidence of a node that no repair cured",
		`Shows what is kept of the node's last repair that ended in quarantine: the fault, the serial
numbers of the devices, the conditions and signals, each rung with the boot IDs and tests
that prove it, the tasks, and the range of the audit trail. -o json prints the whole
document, to attach it to the request for a replacement. It contains no secrets and is kept
after the removal of the node.`,
		"  gpuaas node rma gpu-17\n  gpuaas node rma gpu-17 -o json > rma-gpu-17.json",
		func(ctx context.Context, node string) error {
			b, err := decode[evidence.Bundle](e.api().GetEvidence(ctx, node, nil))
			if err != nil {
				return err
			}
			return e.print(b, func(w io.Writer) { e.writeEvidence(w, b) }, b.OperationID)
		})
}

// writeEvidence shows the evidence in short. What the node reported is escaped by the writer.
func (e *console) writeEvidence(w io.Writer, b evidence.Bundle) {
	fields(w, "Node:", b.Host, "  ID:", b.NodeID, "SKU:", b.SKU, "Provider:", b.Provider, "Instance:", dash(b.InstanceID), "External ID:", dash(b.ExternalID),
		"Operation:", b.OperationID, "At:", e.stamp(b.At), "Fault:", dash(faultText(b.Fault)), "Boot:", dash(b.BootID))
	if b.Facts != nil {
		for _, g := range b.Facts.GPUs {
			fields(w, fmt.Sprintf("GPU %d:", g.Index), clean(fmt.Sprintf("%s, %s, serial %s", g.Model, g.UUID, dash(g.Serial))))
		}
	}
	for _, a := range b.Attempts {
		fields(w, "Rung "+string(a.Rung)+":", clean(attemptLine(a)))
	}
	for _, c := range b.Conditions {
		if c.Status != health.Healthy {
			fields(w, "Condition:", clean(strings.TrimSuffix(c.Name()+": "+c.Detail, ": ")))
		}
	}
	fields(w, "Recorded:", fmt.Sprintf("%s, %s, %s; audit events %d to %d of stream %s", text.Count(len(b.Signals), "signal"),
		text.Count(len(b.Tasks), "task"), text.Count(len(b.Earlier), "earlier attempt"), b.Audit.First, b.Audit.Last, b.Audit.Stream))
}

// attemptLine is a rung in one line: its outcome, the boots and the tests.
func attemptLine(a recovery.Attempt) string {
	parts := []string{a.Outcome}
	if a.BootBefore != "" || a.BootAfter != "" {
		parts = append(parts, fmt.Sprintf("boot %s to %s", dash(a.BootBefore), dash(a.BootAfter)))
	}
	for _, t := range a.Tests {
		result := "skipped"
		switch {
		case t.OK:
			result = "ok"
		case t.Failed():
			result = "failed"
		}
		parts = append(parts, t.Name+" "+result)
	}
	return strings.Join(parts, ", ")
}
