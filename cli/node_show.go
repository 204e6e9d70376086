package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newNodeShow(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "show NODE", Short: "Show a node",
		Long: `Shows a node: state and since when, last heartbeat, the operation that holds it,
what keeps it from being retired, its open tasks, and the facts its agent reported.

Of its identity it shows both sides: the certificate that the control plane holds
for the node and the CA generations it trusts, with fingerprints to compare with
those on the node, whether the identity is locked and why, and whether its issuer
is none of the trusted ones.`,
		Example: "  gpuaas node show gpu-17\n  gpuaas node show gpu-17 -o json | jq .identity",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runNodeShow(c.Context(), e, args[0]) },
	}
}

func runNodeShow(ctx context.Context, e *env, arg string) error {
	api, err := e.api()
	if err != nil {
		return err
	}
	n, err := api.node(ctx, arg)
	if err != nil {
		return err
	}
	tasks := e.openTasks(ctx, n)
	return e.print(n, func(w io.Writer) {
		e.writeNode(w, n)
		e.writeIdentity(w, n)
		e.writeHeld(w, n)
		e.writeOpen(w, tasks)
		writeFacts(w, n.Facts)
	})
}

// openTasks are the node's tasks that are not over. They are for people: the
// machines' form is the node alone.
func (e *env) openTasks(ctx context.Context, n wire.NodeView) []wire.TaskView {
	if e.machine() {
		return nil
	}
	api, err := e.api()
	var tasks []wire.TaskView
	if err == nil {
		tasks, err = api.tasks(ctx, n.ID, false, 20)
	}
	if err != nil {
		e.say("warning: its tasks are not shown: %s", err)
	}
	return tasks
}

func (e *printer) writeOpen(w io.Writer, tasks []wire.TaskView) {
	for i, t := range tasks {
		label := "Tasks:"
		if i > 0 {
			label = ""
		}
		row(w, label, fmt.Sprintf("%s %s, lease %s, %s", t.Type, taskStatus(t), leaseLeft(t, e.clock.now()), t.TaskID))
	}
}

func (e *printer) writeNode(w io.Writer, n wire.NodeView) {
	row(w, "Node:", n.Host)
	row(w, "ID:", n.ID)
	row(w, "State:", nodeState(n))
	row(w, "Since:", e.stamp(n.StateSince))
	row(w, "SKU:", fmt.Sprintf("%s, %d GPUs", n.SKU, n.GPUsTotal))
	row(w, "Region:", n.RegionCode)
	row(w, "Provider:", fmt.Sprintf("%s (%s)", n.OnboardingMode, n.LifecycleClass))
	if i := n.Instance; i != nil {
		row(w, "Instance:", fmt.Sprintf("%s, %s", i.State, dash(i.ExternalID)))
	}
	row(w, "Heartbeat:", e.stampOf(n.LastHeartbeatAt))
	if n.AgentVersion != "" {
		row(w, "Agent:", fmt.Sprintf("%s, host up %s", n.AgentVersion, span(time.Duration(n.UptimeSeconds)*time.Second)))
	}
}

func (e *printer) writeHeld(w io.Writer, n wire.NodeView) {
	t := target{id: n.ID, host: n.Host}
	if o := n.Operation; o == nil {
		row(w, "Operation:", "none")
	} else {
		row(w, "Operation:", fmt.Sprintf("%s, %s in phase %s, by %s, since %s", o.Action, o.Status, dash(o.Phase), o.Actor, e.stamp(o.StartedAt)))
		if s := o.Stuck; s != nil {
			row(w, "  Waits:", fmt.Sprintf("%s (%s), since %s", s.Message, s.Reason, e.stamp(s.Since)))
			row(w, "  Next:", nextCommand(t, lifecycle.Operation{Action: o.Action, Stuck: s}))
		}
	}
	if blockers := n.Blockers(); len(blockers) > 0 {
		row(w, "Blockers:", strings.Join(blockers, ", "))
	} else {
		row(w, "Blockers:", "none")
	}
}

func writeFacts(w io.Writer, f *inventory.Facts) {
	if f == nil {
		row(w, "Facts:", "none yet")
		return
	}
	row(w, "Facts:", fmt.Sprintf("%s, kernel %s, %s", f.OS, f.Kernel, f.Arch))
	row(w, "  CPU:", strings.TrimRight(fmt.Sprintf("%d %s", f.CPUs, f.CPUModel), " "))
	row(w, "  Memory:", bytesOf(f.MemoryBytes))
	for _, d := range f.Disks {
		row(w, "  Disk:", strings.TrimRight(d.Name+" "+bytesOf(d.SizeBytes)+" "+d.Model, " "))
	}
	for _, c := range f.NICs {
		row(w, "  NIC:", strings.TrimRight(c.Name+" "+strings.Join(c.Addresses, " "), " "))
	}
	for _, g := range f.GPUs {
		row(w, "  GPU:", fmt.Sprintf("%d %s %s", g.Index, g.Model, bytesOf(g.MemoryBytes)))
	}
}

// bytesOf renders a size in binary units, for example 1.5 TiB.
func bytesOf(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n)/(1<<10), 0
	for v >= 1<<10 && unit < len(units)-1 {
		v, unit = v/(1<<10), unit+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + units[unit:unit+1] + "iB"
}
