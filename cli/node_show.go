package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newNodeShow(e *env) *cobra.Command {
	return e.command("show NODE", "Show a node",
		`Shows a node: state and since when, its newest instance, last heartbeat, the operation that
holds it, the workloads that block its retirement, its open tasks, and the facts its agent
reported. It also shows the unhealthy conditions of the node and its newest signals; text in
quotes was reported and is not verified. If the node has a template, it says what differs.

Shows both sides of its identity: the certificate that the control plane has for the
node and the CA generations that it trusts, with fingerprints to compare with those on
the node; whether and why the identity is locked; and whether the issuer of the
certificate is not a trusted CA.`,
		"  gpuaas node show gpu-17\n  gpuaas node show gpu-17 -o json | jq .identity",
		func(ctx context.Context, arg string) error {
			api := e.api()
			n, err := decode[wire.NodeView](api.GetNode(ctx, arg, nil))
			if err != nil {
				return err
			}
			var tasks []wire.TaskView
			var machine *instance.View
			var signals []health.Signal
			var drift template.Report
			if e.output == formatTable || e.output == formatWide {
				if tasks, err = listTasks(ctx, api, adminclient.ListTasksParams{Node: &n.ID, All: new(bool)}, 20); err != nil {
					e.message("warning: its tasks are not shown: %s", err)
				}
				if signals, err = listSignals(ctx, api, n.ID, adminclient.ListNodeSignalsParams{}, recentSignals); err != nil {
					e.message("warning: its signals are not shown: %s", err)
				}
				if machine, err = instanceOf(ctx, api, n); err != nil {
					e.message("warning: the times of its instance are not shown: %s", err)
				}
				if drift, err = decode[template.Report](api.GetDrift(ctx, n.ID, nil)); err != nil {
					e.message("warning: how it differs from its template is not shown: %s", err)
				}
			}
			return e.print(n, func(w io.Writer) {
				e.writeNode(w, n, machine)
				writeTemplate(w, drift)
				e.writeIdentity(w, n)
				e.writeWork(w, n, tasks)
				writeHealth(e.console, w, n, signals)
				writeFacts(w, n.Facts)
			}, n.Host)
		})
}

// recentSignals is how many signals a node is shown with.
const recentSignals = 5

// instanceOf returns the newest instance of a node, nil if it has none. With an error it is only
// what the node has of it.
func instanceOf(ctx context.Context, api *adminclient.Client, n wire.NodeView) (*instance.View, error) {
	if n.Instance == nil {
		return nil, nil
	}
	v, err := decode[instance.View](api.GetInstance(ctx, n.Instance.InstanceID, nil))
	if err != nil {
		v = instance.View{Instance: *n.Instance}
	}
	return &v, err
}

func (e *console) writeNode(w io.Writer, n wire.NodeView, machine *instance.View) {
	agent := ""
	if n.AgentVersion != "" {
		agent = fmt.Sprintf("%s, host up %s", n.AgentVersion, lifecycle.Span(time.Duration(n.UptimeSeconds)*time.Second))
	}
	fields(w, "Node:", n.Host, "ID:", n.ID, "State:", nodeState(n), "  Next:", n.Next(), "Since:", e.stamp(n.StateSince),
		"SKU:", fmt.Sprintf("%s, %d GPUs", n.SKU, n.GPUsTotal), "Region:", n.RegionCode,
		"Provider:", fmt.Sprintf("%s (%s)", n.OnboardingMode, n.LifecycleClass))
	if machine != nil {
		row(w, "Instance:", fmt.Sprintf("%s, %s", machine.State, dash(machine.ExternalID)))
		row(w, "  ID:", machine.InstanceID)
		writeMachine(e, w, "  ", *machine)
	}
	fields(w, "Heartbeat:", e.stampOf(n.LastHeartbeatAt), "Agent:", agent, "  Fault:", n.AgentFault,
		"Driver:", workloadDriver(n), "  Fault:", n.DriverFault)
}

// workloadDriver describes the driver that the agent uses and the registered one.
func workloadDriver(n wire.NodeView) string {
	registered := cmp.Or(n.WorkloadDriver, "no driver")
	switch {
	case n.LastHeartbeatAt == nil:
		return registered + " (registered)"
	case n.Driver == "":
		return "not configured on the node; registered: " + registered
	case n.WorkloadDriver != "" && n.Driver != n.WorkloadDriver:
		return n.Driver + "; registered: " + registered + ", in the next bundle"
	}
	return n.Driver
}

// writeIdentity shows both sides of a node's identity: the certificate that the
// control plane has for it, and the CA generations that it trusts.
func (e *console) writeIdentity(w io.Writer, n wire.NodeView) {
	if n.Identity == nil {
		row(w, "Identity:", "none")
	} else {
		row(w, "Identity:", n.Identity.URI)
		e.writeCert(w, *n.Identity)
	}
	if n.IdentitySequence > 0 {
		row(w, "  Sequence:", fmt.Sprintf("%d of incarnation %d", n.IdentitySequence, n.Incarnation))
	}
	if n.NewestSetVersion > 0 && n.Identity != nil {
		row(w, "Trust:", fmt.Sprintf("verifier set %d of %d", n.SetVersion, n.NewestSetVersion)+rotation.Lost(n.SetLost))
	}
	if p := n.PendingIdentity; p != nil {
		row(w, "Pending:", "a certificate that has not been used yet")
		e.writeCert(w, *p)
	}
	reissue := "gpuaas node reissue-enrollment " + n.Host
	if l := n.IdentityLock; l != nil {
		by := ""
		if l.By != "" {
			by = clean(l.By + ": " + l.Note)
		}
		fields(w, "Locked:", fmt.Sprintf("%s, since %s", l.Reason, e.stamp(l.Since)), "  By:", by, "  Next:", l.Next(n.Host))
	}
	if a := n.IdentityAlarm; a != nil {
		fields(w, "Alarm:", fmt.Sprintf("%s, since %s", a.Message(), e.stamp(a.Since)), "  Next:", a.Next(n.Host))
	}
	for _, ca := range n.TrustedCAs {
		valid := "to " + e.stamp(ca.NotAfter)
		if !ca.NotBefore.IsZero() {
			valid = ca.NotBefore.UTC().Format(time.DateOnly) + " " + valid
		}
		fields(w, "Trusted CA:", ca.Subject, "  Issuer:", dash(ca.Issuer), "  Valid:", valid, "  SHA-256:", fingerprint(ca.Fingerprint))
	}
	if n.Identity != nil && !issuerTrusted(n) {
		fields(w, "Mismatch:", fmt.Sprintf("the issuer %q of the node's certificate is not a trusted CA: its requests are rejected", n.Identity.Issuer),
			"  Next:", reissue)
	}
}

func (e *console) writeCert(w io.Writer, c trust.CertFacts) {
	from := ""
	if !c.NotBefore.IsZero() {
		from = e.stamp(c.NotBefore)
	}
	fields(w, "  Subject:", dash(c.Subject), "  Issuer:", c.Issuer, "  Serial:", c.Serial, "  From:", from,
		"  Expires:", e.stamp(c.NotAfter), "  SHA-256:", fingerprint(c.Fingerprint))
}

// fingerprint renders a hex digest as openssl does, for comparing by eye.
func fingerprint(digest string) string {
	raw, _ := hex.DecodeString(digest) // an invalid digest is shown as none
	return dash(strings.ReplaceAll(fmt.Sprintf("% X", raw), " ", ":"))
}

// writeWork shows the operation that holds the node, its workloads and its open tasks.
func (e *console) writeWork(w io.Writer, n wire.NodeView, tasks []wire.TaskView) {
	if o := n.Operation; o == nil {
		row(w, "Operation:", "none")
	} else {
		e.writeHolder(w, *o, &o.StartedAt)
		if o.Stuck != nil {
			row(w, "  Next:", nextCommand(target{id: n.ID, host: n.Host}, o.Action, o.Stuck))
		}
	}
	row(w, "Blockers:", cmp.Or(strings.Join(n.Blockers(), ", "), "none"))
	for _, warned := range preview.Warnings(n) {
		row(w, "  Warning:", warned.Workload+": "+warned.Warning)
	}
	label := "Tasks:"
	for _, t := range tasks {
		row(w, label, fmt.Sprintf("%s %s, lease %s, %s", t.Type, taskStatus(t), leaseLeft(t, e.clock.now()), t.TaskID))
		label = ""
	}
}

func writeFacts(w io.Writer, f *inventory.Facts) {
	if f == nil {
		row(w, "Facts:", "none yet")
		return
	}
	fields(w, "Facts:", fmt.Sprintf("%s, kernel %s, %s", f.OS, f.Kernel, f.Arch),
		"  CPU:", strings.TrimRight(fmt.Sprintf("%d %s", f.CPUs, f.CPUModel), " "), "  Memory:", bytesOf(f.MemoryBytes))
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
	v, unit := float64(n), 0
	for v >= 1<<10 && unit < 6 {
		v, unit = v/(1<<10), unit+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit]
}
