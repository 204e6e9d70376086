package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nodeEvidence is what the admin API has about a node. Nothing of it is secret.
type nodeEvidence struct {
	Node     wire.NodeView
	Stuck    wire.StuckList
	Refusals []audit.Row
	Report   diagnosis.Report
	// Cause is the probable cause, nil without one.
	Cause *cause.Report
	// Unlocked is when the identity was unlocked in the last wire.LockedPollMax, nil if it was not.
	Unlocked *time.Time
}

func newDoctor(e *env) *cobra.Command {
	var bundle, nodeReport string
	c := e.command("doctor NODE", "Find what keeps a node from working",
		`Checks a node from the control plane's side: its registration, its identity, its last poll,
what its agent reports, its health, recent rejections of its requests, its open tasks, the operation
that holds it, and the control plane itself. For each fault, it names who can most likely
correct it and the next step, and at the end the probable cause. It changes nothing.

"gpuaas-node-agent doctor" on the node checks the same from the other side: its
configuration, the way to the node API, and whether the API accepts its certificate.
--node-report adds its output to this report.

--bundle also writes a zip archive for a support case: the checks, the node, its history,
its tasks, its audit events, its signals, the decisions of health recovery, the evidence of
its last repair that ended in quarantine, the faults of the control plane, and the commands
that collect the logs. It contains no secret.

A fault of the control plane that does not concern the node is information (info). The exit
code is 1 if there is another fault.`,
		"  gpuaas doctor gpu-17\n  gpuaas doctor gpu-17 -o json\n  gpuaas doctor gpu-17 --bundle gpu-17.zip\n"+
			"  ssh root@gpu-17 /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor -o json | gpuaas doctor gpu-17 --node-report -",
		func(ctx context.Context, arg string) error {
			file, err := newEvidenceFile(bundle)
			if err != nil {
				return err
			}
			defer file.discard()
			node, err := readNodeReport(e, nodeReport)
			if err != nil {
				return err
			}
			refusals := uint(1) // the check needs the last one
			if file != nil {
				refusals = evidenceRows
			}
			ev, err := examine(ctx, e, arg, refusals)
			if err != nil {
				return err
			}
			ev.Report.Checks = append(ev.Report.Checks, node.Checks...)
			if len(ev.Report.Faults()) > 0 {
				var c diagnosis.Check
				c, ev.Cause = checkCause(ctx, e, ev.Node)
				ev.Report.Add(c)
			}
			if err := e.print(ev.Report, func(w io.Writer) { writeReport(w, ev.Report) }); err != nil {
				return err
			}
			if file != nil {
				if err := writeEvidence(ctx, e, file, ev); err != nil {
					return err
				}
			}
			if len(ev.Report.Faults()) > 0 {
				return &exitError{schema.ExitFailed, nil}
			}
			return nil
		})
	c.Flags().StringVar(&nodeReport, "node-report", "", "add the checks of this `FILE`, the output of gpuaas-node-agent doctor -o json; - for stdin")
	c.Flags().StringVar(&bundle, "bundle", "", "also write the evidence to this `FILE`, a zip archive")
	return c
}

// recentRefusals is how far back rejections of a node's requests are read.
const recentRefusals = "1h"

// examine reads what the control plane has about a node, with so many of the newest rejections
// of its requests, and checks it.
func examine(ctx context.Context, e *env, arg string, refusals uint) (ev nodeEvidence, err error) {
	api := e.api()
	if ev.Node, err = decode[wire.NodeView](api.GetNode(ctx, arg, nil)); err != nil {
		return ev, err
	}
	since := recentRefusals
	if ev.Refusals, err = listAudit(ctx, api, adminclient.ListAuditParams{Node: &ev.Node.ID, Since: &since,
		Action: &[]string{audit.IdentityRefused, audit.TokenRefused, audit.RecoveryRefused}}, refusals); err != nil {
		return ev, err
	}
	if ev.Unlocked, err = lastUnlock(ctx, e, ev.Node); err != nil {
		return ev, err
	}
	if ev.Stuck, err = e.apiControl().stuck(ctx, stuckQuery{limit: 1, node: &ev.Node.ID}); err != nil {
		return ev, err
	}
	tasks, err := listTasks(ctx, api, adminclient.ListTasksParams{Node: &ev.Node.ID}, evidenceRows)
	if err != nil {
		return ev, err
	}
	n, now := ev.Node, e.clock.now()
	for _, c := range []diagnosis.Check{checkRegistration(n), checkState(n, ev.Stuck), checkIdentity(n, now), checkHeartbeat(ev, now), checkAgent(n, now), checkHealth(n),
		checkVerifierSet(n), checkDriver(n), checkRefusals(n, ev.Refusals), checkTasks(tasks, now), checkOperation(n)} {
		ev.Report.Add(c)
	}
	for _, c := range checkControlPlane(n, ev.Stuck.Faults) {
		ev.Report.Add(c)
	}
	return ev, nil
}

// lastUnlock returns when the node's identity was unlocked, nil if that was not recent or the
// identity is locked again.
func lastUnlock(ctx context.Context, e *env, n wire.NodeView) (*time.Time, error) {
	if n.IdentityLock != nil {
		return nil, nil
	}
	since := e.clock.now().Add(-wire.LockedPollMax)
	events, err := listAudit(ctx, e.api(), adminclient.ListAuditParams{Node: &n.ID, Action: &[]string{audit.NodeUnlock},
		Result: &[]string{string(audit.Succeeded)}, Since: new(since.UTC().Format(time.RFC3339))}, 1)
	if err != nil || len(events) == 0 || events[0].At.Before(since) {
		return nil, err
	}
	return &events[0].At, nil
}

func checkRegistration(n wire.NodeView) diagnosis.Check {
	c := diagnosis.Check{Name: "registration", Asked: "the node's state"}
	answer := fmt.Sprintf("%s, SKU %s, %d GPUs, region %s", nodeState(n), n.SKU, n.GPUsTotal, n.RegionCode)
	switch n.State {
	case lifecycle.NodeRemoved:
		return c.Failed(answer, diagnosis.Operator, "the node is removed; to use the machine again: gpuaas node register")
	case lifecycle.NodeQuarantined:
		if held(n) {
			return c.Failed(answer, diagnosis.Operator, "gpuaas op show "+n.Host)
		}
		if len(preview.Faults(n)) > 0 {
			return c.Failed(answer, diagnosis.Operator, "gpuaas node history "+n.Host+" shows why; the check health has the next step")
		}
		return c.Failed(answer, diagnosis.Operator, "gpuaas node history "+n.Host+" shows why; then "+cmp.Or(n.Next(), "gpuaas node release "+n.Host+" --reason TEXT"))
	}
	return c.OK(answer)
}

// held reports whether an operation that has not ended holds the node.
func held(n wire.NodeView) bool { return n.Operation != nil && !n.Operation.Status.Ended() }

func checkIdentity(n wire.NodeView, now time.Time) diagnosis.Check {
	c := diagnosis.Check{Name: "identity", Asked: "the certificate that the node API accepts"}
	reissue := "gpuaas node reissue-enrollment " + n.Host + " --reason TEXT"
	switch {
	case n.IdentityLock != nil:
		return c.Failed(fmt.Sprintf("locked since %s: %s", n.IdentityLock.Since.UTC().Format(time.RFC3339), n.IdentityLock.Reason),
			diagnosis.Operator, n.IdentityLock.Next(n.Host))
	case n.IdentityAlarm != nil:
		return c.Failed(n.IdentityAlarm.Message(), diagnosis.Operator, n.IdentityAlarm.Next(n.Host))
	case n.Identity == nil:
		return c.Failed("none", diagnosis.Operator, cmp.Or(n.Next(), "install the bundle on the node; its agent's log names why an enrollment fails"))
	}
	id := n.Identity
	answer := fmt.Sprintf("subject %s, issuer %s, expires %s, SHA-256 %s", id.URI, id.Issuer, id.NotAfter.UTC().Format(time.RFC3339), fingerprint(id.Fingerprint))
	switch {
	case !now.Before(id.NotAfter):
		return c.Failed(answer, diagnosis.Node, "the agent recovers automatically when it runs: systemctl restart gpuaas-node-agent on the node; if it cannot, "+reissue)
	case !issuerTrusted(n):
		return c.Failed(answer+"; the issuer is not a trusted CA", diagnosis.ControlPlane,
			"gpuaas trust show; the agent recovers automatically if the CA was replaced; if it cannot, "+reissue)
	}
	return c.OK(answer)
}

// issuerTrusted reports whether the issuer of the node's certificate is a trusted CA. Without a
// list of the trusted CAs there is nothing to compare.
func issuerTrusted(n wire.NodeView) bool {
	return len(n.TrustedCAs) == 0 ||
		slices.ContainsFunc(n.TrustedCAs, func(ca trust.CertFacts) bool { return ca.Subject == n.Identity.Issuer })
}

func checkHeartbeat(ev nodeEvidence, now time.Time) diagnosis.Check {
	n := ev.Node
	c := diagnosis.Check{Name: "last heartbeat", Asked: "when the agent polled last"}
	if n.Identity == nil || n.IdentityLock != nil { // the node API rejects its polls
		return c.Skipped()
	}
	if n.LastHeartbeatAt == nil {
		return c.Failed("never", diagnosis.Node, diagnosis.OnNode)
	}
	answer := n.LastHeartbeatAt.UTC().Format(time.RFC3339)
	if silent := now.Sub(*n.LastHeartbeatAt); lifecycle.Silent(n.State, n.StateSince, *n.LastHeartbeatAt, now) {
		if ev.Unlocked != nil && n.LastHeartbeatAt.Before(*ev.Unlocked) {
			return c.OK(answer + "; the identity was unlocked, and its agent polls again by " + ev.Unlocked.Add(wire.LockedPollMax).UTC().Format(time.RFC3339))
		}
		return c.Failed(answer+", "+lifecycle.Span(silent)+" ago", diagnosis.Node, diagnosis.OnNode)
	}
	return c.OK(answer)
}

func checkAgent(n wire.NodeView, now time.Time) diagnosis.Check {
	c := diagnosis.Check{Name: "agent", Asked: "what the agent reports about itself"}
	switch {
	case n.LastHeartbeatAt == nil:
		return c.Skipped()
	case n.AgentFault != "":
		return c.Failed(clean(n.AgentFault), diagnosis.Node, diagnosis.OnNode)
	}
	answer := fmt.Sprintf("version %s, verifier set %d of %d", clean(n.AgentVersion), n.SetVersion, n.NewestSetVersion)
	if now.Sub(*n.LastHeartbeatAt) > lifecycle.SilentAfter {
		answer += ", at its last heartbeat" // it may be gone since
	}
	return c.OK(answer)
}

func checkDriver(n wire.NodeView) diagnosis.Check {
	c := diagnosis.Check{Name: "workload driver", Asked: "whether the agent finds the node's workloads"}
	switch {
	case n.LastHeartbeatAt == nil:
		return c.Skipped()
	case n.DriverFault != "":
		return c.Failed(clean(n.DriverFault), diagnosis.Node, "correct the driver on the node; a drain parks until then")
	case n.Driver == "":
		return c.Failed(workloadDriver(n), diagnosis.Operator, "set GPUAAS_WORKLOAD_DRIVER in the node's env file; a drain parks until then")
	}
	return c.OK(clean(workloadDriver(n)) + fmt.Sprintf(", %d workloads", len(n.Workloads)))
}

func checkRefusals(n wire.NodeView, refusals []audit.Row) diagnosis.Check {
	c := diagnosis.Check{Name: "rejections", Asked: "requests that the node API rejected since the last heartbeat, at most " + recentRefusals + " ago"}
	if len(refusals) == 0 {
		return c.OK("none")
	}
	last := refusals[0]
	if n.LastHeartbeatAt != nil && last.At.Before(*n.LastHeartbeatAt) {
		return c.OK("none since the last heartbeat")
	}
	switch {
	case last.Reason != schema.ReasonNodeLocked:
	case n.IdentityLock != nil:
		return c.Skipped() // the lock is the fault
	default:
		return c.OK(fmt.Sprintf("none since the identity was unlocked; the last one at %s", last.At.UTC().Format(time.RFC3339)))
	}
	owner := diagnosis.Operator
	if last.Action == audit.IdentityRefused && slices.Contains([]string{schema.ReasonExpired, schema.ReasonIssuerRetired}, last.Reason) {
		owner = diagnosis.Node
	}
	return c.Failed(fmt.Sprintf("%s %s: %s", last.At.UTC().Format(time.RFC3339), last.Action, clean(last.Reason)), owner,
		fmt.Sprintf("gpuaas audit --node %s --since %s --result refused; %s", n.Host, recentRefusals, diagnosis.OnNode))
}

func checkOperation(n wire.NodeView) diagnosis.Check {
	c := diagnosis.Check{Name: "operation", Asked: "the operation that holds the node"}
	o := n.Operation
	switch {
	case o == nil:
		return c.OK("none")
	case o.Stuck == nil:
		return c.OK(fmt.Sprintf("%s, in phase %s since %s", o.Action, o.Phase, o.StartedAt.UTC().Format(time.RFC3339)))
	}
	return c.Failed(fmt.Sprintf("%s is parked in phase %s since %s: %s: %s", o.Action, o.Stuck.Phase, o.Stuck.Since.UTC().Format(time.RFC3339),
		o.Stuck.Reason, clean(o.Stuck.Message)), ownerOf(o.Stuck.WaitingOn), nextCommand(target{id: n.ID, host: n.Host}, o.Action, o.Stuck))
}

// ownerOf returns who can correct the fault of a parked operation.
func ownerOf(a lifecycle.Attention) diagnosis.Owner {
	if a == lifecycle.AttentionAgent {
		return diagnosis.Node
	}
	return diagnosis.Operator
}

// reasonNotRepaired is the reason of the fault that lists nodes which no repair cured.
const reasonNotRepaired = "not_repaired"

// checkControlPlane checks the control plane. The identity of the node has a check of its own,
// and those of other nodes do not keep this one from working. A fault that does not concern the node is
// information.
func checkControlPlane(n wire.NodeView, faults []wire.ControlPlaneFault) []diagnosis.Check {
	faults = slices.DeleteFunc(slices.Clone(faults), func(f wire.ControlPlaneFault) bool {
		return f.Component == wire.ComponentNodeIdentity || f.Reason == reasonNotRepaired
	})
	c := diagnosis.Check{Name: "control plane", Asked: "faults of the services, the workers and the schedules"}
	if len(faults) == 0 {
		return []diagnosis.Check{c.OK("none")}
	}
	var all []diagnosis.Check
	for _, f := range faults {
		c.Name = "control plane: " + f.Component
		if !concerns(n, f) {
			all = append(all, c.Info(clean(f.Message), f.Next))
			continue
		}
		all = append(all, c.Failed(f.Message, diagnosis.ControlPlane, cmp.Or(f.Next, "gpuaas stuck")))
	}
	return all
}

// concerns reports whether a fault of the control plane may keep the node from working. One that is not
// known here may.
func concerns(n wire.NodeView, f wire.ControlPlaneFault) bool {
	switch f.Component {
	case "audit-trail", "retention", "surplus-machine", "rotation", lifecycle.ScheduleDelete, lifecycle.ScheduleSweep, lifecycle.ScheduleDrift, lifecycle.ScheduleExplain:
		return false
	case "health-recovery", lifecycle.ScheduleDecide: // it repairs nodes with a fault
		return n.State != lifecycle.NodeQuarantined && len(preview.Faults(n)) > 0
	case "tasks": // they are of operations
		return held(n)
	case "verifier-set":
		return f.Reason != "lost" || n.SetLost
	}
	return true
}

func writeReport(w io.Writer, r diagnosis.Report) {
	for _, c := range r.Checks {
		row(w, string(c.Result), c.Name, dash(c.Answer))
		if c.Result == diagnosis.Failed {
			row(w, "", "owner:", string(c.Owner))
			row(w, "", "next:", c.Next)
		}
		if c.Result == diagnosis.Info && c.Next != "" {
			row(w, "", "next:", c.Next)
		}
	}
}
