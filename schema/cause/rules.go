package cause

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// group is how many nodes or operations with one symptom have a common cause.
const group = 3

// ownReasons are the reasons with which an operation parks because of the control plane.
func ownReasons() []string {
	return []string{string(schema.KindServiceUnavailable), lifecycle.ReasonVaultSealed, lifecycle.ReasonVaultUnreachable, lifecycle.ReasonClockSkew,
		lifecycle.ReasonRecordUnavailable, lifecycle.ReasonStepUnknown, lifecycle.ReasonProviderUnknown, string(schema.KindInternal)}
}

// controlPlane explains a park with the faults of the control plane. A fault explains the parks of
// its own reasons, and silence only if the node API does not receive requests.
func controlPlane(e Evidence) (out []Candidate) {
	own := slices.Contains(ownReasons(), e.Park.Reason)
	for _, f := range e.faultsOf(slices.Concat(queueComponents(), serviceComponents())) {
		confidence := 0.4
		if own {
			confidence = 0.95
		}
		out = append(out, Candidate{Cause: f.Component + "_" + f.Reason, Summary: f.Message, Confidence: confidence, Owner: diagnosis.ControlPlane,
			Next: cmp.Or(f.Next, "gpuaas stuck"), Reasoning: []string{"the control plane has this fault now: " + f.Component + ", " + f.Reason}})
	}
	if !e.Around.Receiving && e.Silent() && !own {
		out = append(out, Candidate{Cause: "node_api_down", Summary: "no replica of the node API receives requests, so nodes cannot report", Confidence: 0.93,
			Owner: diagnosis.ControlPlane, Next: "gpuaas admin check", Reasoning: []string{"no replica recorded in the last minutes that it receives requests"}})
	}
	return out
}

// identity explains what a locked identity prevents.
func identity(e Evidence) []Candidate {
	if e.Node.LockReason == "" {
		return nil
	}
	return []Candidate{{Cause: "identity_locked", Summary: "the identity of the node is locked, so the node API rejects it", Confidence: 0.98,
		Owner: diagnosis.Operator, Next: "gpuaas doctor " + e.Node.Host, Reasoning: []string{"the lock's reason is " + e.Node.LockReason}}}
}

// silence explains a silent node by what it shares with others, then by its certificate, then by
// what changed shortly before.
func silence(e Evidence) []Candidate {
	if !e.Silent() || e.Node.LockReason != "" || !e.Around.Receiving {
		return nil
	}
	since := "the last heartbeat was " + lifecycle.Span(e.At.Sub(e.Node.LastHeartbeat)) + " ago"
	silent := func(cause, summary string, confidence float64, owner diagnosis.Owner, next, fact string) Candidate {
		return Candidate{Cause: cause, Summary: summary, Confidence: confidence, Owner: owner, Next: next, Reasoning: []string{since, fact}}
	}
	doctor := "gpuaas doctor " + e.Node.Host
	var out []Candidate
	switch {
	case e.Around.RackSilent >= group:
		out = append(out, silent("rack_down", "the rack "+quoted(e.Node.Rack)+" lost its switch or its power", 0.9, diagnosis.Network,
			"check the switch and the power of the rack before single nodes", fmt.Sprintf("%d of %d nodes of the rack are silent", e.Around.RackSilent, e.Around.RackNodes)))
	case e.Around.RegionSilent >= group:
		out = append(out, silent("region_down", "the nodes of region "+quoted(e.Node.Region)+" cannot reach the node API", 0.8, diagnosis.Network,
			"check the network between the region and the node API", fmt.Sprintf("%d of %d nodes of the region are silent", e.Around.RegionSilent, e.Around.RegionNodes)))
	}
	if !e.Node.NotAfter.IsZero() && e.Node.NotAfter.Before(e.At) {
		out = append(out, silent("certificate_expired", "the certificate expired, and the agent has not recovered its identity", 0.6, diagnosis.Node, doctor,
			"the certificate expired at "+e.Node.NotAfter.UTC().Format(time.RFC3339)))
	}
	return append(out, silent("node_silent", "the node lost power or network, or its agent ended", 0.5, diagnosis.Node, doctor, "no other fact explains the silence"))
}

// reported explains a park by the fault that the agent reports, and by a restart of the node.
func reported(e Evidence) (out []Candidate) {
	if e.Node.AgentFault != "" {
		out = append(out, Candidate{Cause: "agent_fault", Summary: "the agent accepts no tasks: " + quoted(e.Node.AgentFault), Confidence: 0.92,
			Owner: diagnosis.Node, Next: diagnosis.OnNode, Reasoning: []string{"the agent reports this fault in its heartbeats"}})
	}
	if e.Node.DriverFault != "" {
		confidence := 0.4
		if e.Park.Reason == lifecycle.ReasonWorkloadsUnknown || e.Park.Reason == lifecycle.ReasonDrainBlocked {
			confidence = 0.92
		}
		out = append(out, Candidate{Cause: "driver_fault", Summary: "the workload driver does not list the workloads: " + quoted(e.Node.DriverFault), Confidence: confidence,
			Owner: diagnosis.Node, Next: diagnosis.OnNode, Reasoning: []string{"the agent reports this fault in its heartbeats"}})
	}
	if lost := e.Park.Reason == lifecycle.ReasonTaskLost; lost && e.Node.BootedAt.After(e.Park.Since.Add(-time.Hour)) {
		out = append(out, Candidate{Cause: "node_restarted", Summary: "the node restarted while it ran the task", Confidence: 0.85, Owner: diagnosis.Node,
			Next: "gpuaas op show " + e.Node.Host, Reasoning: []string{"the node booted at " + e.Node.BootedAt.UTC().Format(time.RFC3339)}})
	}
	return out
}

// unhealthy explains a state of the node by its faults.
func unhealthy(e Evidence) []Candidate {
	faults := e.Node.faults()
	if len(faults) == 0 {
		return nil
	}
	c := Candidate{Cause: "node_unhealthy", Summary: "the node has a fault: " + quoted(health.Summary(faults)), Confidence: 0.6, Owner: diagnosis.Node,
		Next: RepairNext(e.Node.Host, e.Node.State, e.Park.OperationID != ""), Reasoning: []string{"the health checkers report it since " + faults[0].Since.UTC().Format(time.RFC3339)}}
	if e.Park.Reason == "" || e.Park.Reason == lifecycle.ReasonNotCured {
		c.Confidence = 0.9
	}
	return []Candidate{c}
}

// RepairNext is what to do about a fault of a node: what to read first, and how a person repairs the node
// or returns it to service. An open operation of the node has its own options.
func RepairNext(host string, state lifecycle.NodeState, open bool) string {
	switch {
	case open:
		return "gpuaas op show " + host
	case state == lifecycle.NodeQuarantined:
		return "the evidence of a repair, if there was one: gpuaas node rma " + host + "; when the node is repaired: " +
			lifecycle.ReleaseCommand(host) + " --reason " + lifecycle.ReasonPlaceholder
	}
	return "what health recovery does: gpuaas recovery status; to repair the node by hand: gpuaas node recover " + host + " --dry-run"
}

// provider explains a park that waits for a provider.
func provider(e Evidence) []Candidate {
	next := "gpuaas provider show " + e.Provider.Name
	one := func(cause, summary string, confidence float64, owner diagnosis.Owner, next string, facts ...string) []Candidate {
		return []Candidate{{Cause: cause, Summary: summary, Confidence: confidence, Owner: owner, Next: next, Reasoning: facts}}
	}
	if p, ok := machine.ProblemOf(e.Park.Reason); ok {
		return one(p.Reason, strings.TrimSuffix(p.Means, "."), 0.95, diagnosis.Operator, p.Next, "the provider answered so: "+quoted(e.Park.Message))
	}
	if e.Park.Reason != lifecycle.ReasonProviderSilent && e.Park.Reason != lifecycle.ReasonProviderUnknown {
		return nil
	}
	switch {
	case !e.Provider.Described:
		return one("provider_without_worker", "no worker that runs has the provider "+e.Provider.Name, 0.95, diagnosis.ControlPlane,
			"start a gpuaas-worker that has the provider", "no worker has described the provider in the last minutes")
	case e.Provider.Disabled != "":
		return one("provider_disabled", "the provider "+e.Provider.Name+" is disabled: "+e.Provider.Disabled, 0.95, diagnosis.ControlPlane, next, "its worker reports this")
	case e.Provider.Failed:
		return one("provider_failing", "the provider "+e.Provider.Name+" does not answer as it should: "+quoted(e.Provider.Answer), 0.9, diagnosis.Operator, next, "it was asked for the machine just now")
	case e.Around.SameProvider >= group:
		return one("provider_outage", "the provider "+e.Provider.Name+" does not respond", 0.85, diagnosis.Operator, next, text.Count(e.Around.SameProvider, "operation")+" wait for it")
	case e.Provider.Asked:
		return one("provider_slow", "the provider "+e.Provider.Name+" was slow, and it answers again", 0.6, diagnosis.Operator,
			lifecycle.DecisionCommand(lifecycle.DecisionRetry, e.Park.Action, e.Node.Host, e.Park.OperationID), "it was asked for the machine just now: "+quoted(e.Provider.Answer))
	}
	return one("provider_slow", "the provider "+e.Provider.Name+" does not respond in time", 0.5, diagnosis.Operator, next, "the phase exceeded its budget")
}

// workloads explains a drain that does not end.
func workloads(e Evidence) []Candidate {
	if e.Park.Reason != lifecycle.ReasonDrainBlocked && e.Node.State != lifecycle.NodeDraining || len(e.Node.Workloads) == 0 || e.Silent() {
		return nil
	}
	shown := quoted(strings.Join(e.Node.Workloads[:min(3, len(e.Node.Workloads))], ", "))
	c := Candidate{Cause: "workloads_running", Summary: text.Count(len(e.Node.Workloads), "workload") + " did not end: " + shown, Confidence: 0.85, Owner: diagnosis.Operator,
		Next: "gpuaas op show " + e.Node.Host, Reasoning: []string{"the last heartbeat lists them"}}
	if e.Around.Free > 0 {
		c.Reasoning = append(c.Reasoning, fmt.Sprintf("capacity is free: %s of the SKU in the region", text.Count(e.Around.Free, "node")))
		return []Candidate{c}
	}
	c.Confidence = 0.7
	return []Candidate{{Cause: "no_capacity", Summary: "no other node of SKU " + e.Node.SKU + " in region " + quoted(e.Node.Region) + " is free, so the workloads cannot move", Confidence: 0.8,
		Owner: diagnosis.Operator, Next: "gpuaas capacity --sku " + e.Node.SKU, Reasoning: []string{"the node has " + text.Count(len(e.Node.Workloads), "workload") + ": " + shown}}, c}
}

// rejected explains a park by rejections of the node's requests and by its verifier set.
func rejected(e Evidence) (out []Candidate) {
	if e.Refusals > 0 && e.Node.LockReason == "" {
		out = append(out, Candidate{Cause: "identity_rejected", Summary: "the node API rejects the requests of the node: " + e.LastRefusal, Confidence: 0.88,
			Owner: diagnosis.Operator, Next: "gpuaas doctor " + e.Node.Host, Reasoning: []string{text.Count(e.Refusals, "request") + " since the last heartbeat"}})
	}
	behind := e.Node.SetVersion > 0 && e.Node.SetVersion < e.Node.NewestSet
	if behind && (e.Park.Reason == string(schema.KindTaskRefused) || e.Silent()) {
		confidence := 0.3
		if e.Park.Reason == string(schema.KindTaskRefused) {
			confidence = 0.75
		}
		out = append(out, Candidate{Cause: "verifier_set_old", Summary: fmt.Sprintf("the node verifies tasks with set %d, and the newest is %d", e.Node.SetVersion, e.Node.NewestSet),
			Confidence: confidence, Owner: diagnosis.Node, Next: "gpuaas node show " + e.Node.Host, Reasoning: []string{"the last poll named this set"}})
	}
	return out
}

// many explains a park by others with the same reason.
func many(e Evidence) []Candidate {
	if e.Park.Reason == "" || e.Around.SameReason < group {
		return nil
	}
	return []Candidate{{Cause: "common_cause", Summary: fmt.Sprintf("%d operations parked for %s within an hour: one cause, often an outage", e.Around.SameReason, e.Park.Reason),
		Confidence: 0.65, Owner: diagnosis.Operator, Next: "gpuaas stuck --stuck-reason " + e.Park.Reason, Reasoning: []string{"independent faults rarely begin together"}}}
}

// changed lists the last changes before the fault began. A change of the node shortly before it is
// a stronger candidate than one of the fleet.
func changed(e Evidence) (out []Candidate) {
	began := e.Park.Since
	if e.Silent() && (began.IsZero() || e.Node.LastHeartbeat.Before(began)) {
		began = e.Node.LastHeartbeat
	}
	if began.IsZero() || e.Park.Reason == lifecycle.ReasonApproval { // nothing keeps the node from working, or a person must decide
		return nil
	}
	for _, c := range e.Changes {
		before := began.Sub(c.At)
		routine := c.Actor == "node:"+e.Node.ID // the renewal of its certificate
		if routine || before < 0 || before > cmp.Or(e.Lookback, Lookback) || len(out) == 2 {
			continue
		}
		confidence := map[string]float64{"node": 0.55, "fleet": 0.35}[c.Scope]
		if before > time.Hour {
			confidence /= 2
		}
		out = append(out, Candidate{Cause: "recent_change", Summary: strings.TrimSpace("something changed shortly before: " + c.Action + " " + quoted(c.Detail)), Confidence: confidence, Owner: diagnosis.Operator,
			Next:      "gpuaas audit --node " + e.Node.Host + " --since 24h",
			Reasoning: []string{fmt.Sprintf("%s by %s, %s before the fault began", c.Action, quoted(c.Actor), lifecycle.Span(before))}})
	}
	return out
}
