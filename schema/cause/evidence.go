package cause

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// MaxChanges bounds Evidence.Changes.
const MaxChanges = 50

// Evidence is what Explain reads. Texts of nodes are untrusted.
type Evidence struct {
	// At is when it was read, by the database's clock.
	At       time.Time
	Lookback time.Duration
	Node     Node
	Park     Park
	Around   Around
	Provider Provider
	// Faults are those of the control plane. FaultsRead is false if they were not read.
	Faults     []Fault
	FaultsRead bool
	// Changes are what changed in the lookback, newest first.
	Changes []Change
	// Refusals counts the rejected requests of the node since its last heartbeat, and LastRefusal
	// is the reason of the newest one.
	Refusals    int
	LastRefusal string
}

// Node is the node's record.
type Node struct {
	ID, Host          string
	State             lifecycle.NodeState
	StateSince        time.Time
	SKU, Region, Rack string
	// Enrolled is false if the node never polled. LastHeartbeat is zero then.
	Enrolled      bool
	LastHeartbeat time.Time
	// BootedAt follows from the uptime of the last heartbeat, zero without one.
	BootedAt     time.Time
	AgentVersion string
	// AgentFault and DriverFault are those that the agent reports.
	AgentFault, DriverFault string
	// LockReason is set while the identity is locked.
	LockReason string
	// NotAfter is when the certificate expires, and RenewBy when its renewal is overdue.
	NotAfter, RenewBy time.Time
	// SetVersion is the verifier set of the node, NewestSet the newest one.
	SetVersion, NewestSet int64
	// Workloads are the names of the node's workloads.
	Workloads []string
	// Conditions are those that the health checkers found last.
	Conditions []health.Condition
}

// faults returns the unhealthy conditions that need a repair.
func (n Node) faults() []health.Condition {
	return health.Report{Conditions: n.Conditions}.Faults()
}

// Park is the park of the node's operation, empty without one.
type Park struct {
	OperationID string
	Action      lifecycle.Action
	Phase       string
	Reason      string
	Message     string
	Since       time.Time
}

// Around is the state of the fleet around the node. The counts include the node.
type Around struct {
	// Receiving is false if the node API has not received requests for long enough to call a node
	// silent.
	Receiving bool
	// RackSilent and RegionSilent are the nodes that are silent in the rack and the region, and
	// RackNodes and RegionNodes all of them.
	RackSilent, RackNodes     int
	RegionSilent, RegionNodes int
	// SameReason are the operations that parked for the same reason in the hour before the park.
	SameReason int
	// SameProvider are the parked operations that wait for the same provider.
	SameProvider int
	// Free are the other nodes of the SKU and the region that are in service and have no workload.
	Free int
}

// Provider is the provider of the node.
type Provider struct {
	Name string
	// Described is false if no worker describes the provider. Disabled says why it is switched off.
	Described bool
	Disabled  string
	// Asked is set if the provider was asked for the machine; Answer is its answer or its error.
	Asked  bool
	Failed bool
	Answer string
}

// Fault is a fault of the control plane.
type Fault struct{ Component, Reason, Message, Next string }

// Change is something that changed.
type Change struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"`
	Actor  string    `json:"actor"`
	// Scope is "node" or "fleet".
	Scope string `json:"scope"`
	// Detail is a short text, for example a version.
	Detail string `json:"detail,omitempty"`
}

// Silent reports whether the node is silent, as lifecycle.Silent defines it. A node that never enrolled
// is not.
func (e Evidence) Silent() bool {
	return e.Node.Enrolled && lifecycle.Silent(e.Node.State, e.Node.StateSince, e.Node.LastHeartbeat, e.At)
}

// probes returns the questions with their answers.
func (e Evidence) probes() []diagnosis.Check {
	return []diagnosis.Check{e.probeQueue(), e.probeServices(), e.probeHeartbeat(), e.probeAgent(), e.probeHealth(), e.probeCertificate(), e.probeLock(),
		e.probeNeighbors(), e.probeProvider(), e.probeWorkloads(), e.probeRefusals(), e.probeChanges()}
}

// queueComponents are the components of faults of workers and of Temporal.
func queueComponents() []string { return []string{"worker", "temporal", "tasks"} }

// serviceComponents are the components of faults of the services.
func serviceComponents() []string {
	return []string{"postgres", "vault", "task-signer", "clock", "outbox", "schema", "server-certificate"}
}

func (e Evidence) faultsOf(components []string) (faults []Fault) {
	for _, f := range e.Faults {
		if slices.Contains(components, f.Component) {
			faults = append(faults, f)
		}
	}
	return faults
}

func (e Evidence) probeFaults(name, asked string, components []string) diagnosis.Check {
	c := diagnosis.Check{Name: name, Asked: asked}
	faults := e.faultsOf(components)
	switch {
	case !e.FaultsRead:
		return c.Skipped()
	case len(faults) == 0:
		return c.OK("no fault")
	}
	return c.Failed(faults[0].Message, diagnosis.ControlPlane, cmp.Or(faults[0].Next, "gpuaas stuck"))
}

func (e Evidence) probeQueue() diagnosis.Check {
	return e.probeFaults("task queue", "whether workers poll, and Temporal responds", queueComponents())
}

func (e Evidence) probeServices() diagnosis.Check {
	return e.probeFaults("services", "Postgres, Vault, the clocks and the delivery of results", serviceComponents())
}

func (e Evidence) probeHeartbeat() diagnosis.Check {
	c := diagnosis.Check{Name: "heartbeat", Asked: "the last heartbeat of the node"}
	switch {
	case !e.Node.Enrolled:
		return c.Skipped()
	case e.Node.LastHeartbeat.IsZero():
		return c.Failed("never", diagnosis.Node, diagnosis.OnNode)
	case e.Silent() && !e.Around.Receiving:
		return c.Failed("the node API does not receive requests, so silence proves nothing", diagnosis.ControlPlane, "gpuaas admin check")
	case e.Silent():
		return c.Failed(lifecycle.Span(e.At.Sub(e.Node.LastHeartbeat))+" ago", diagnosis.Node, "gpuaas doctor "+e.Node.Host)
	}
	return c.OK(lifecycle.Span(e.At.Sub(e.Node.LastHeartbeat)) + " ago")
}

func (e Evidence) probeAgent() diagnosis.Check {
	c := diagnosis.Check{Name: "agent fault", Asked: "what the agent reports about itself"}
	if fault := cmp.Or(e.Node.AgentFault, e.Node.DriverFault); fault != "" {
		return c.Failed(quoted(fault), diagnosis.Node, diagnosis.OnNode)
	}
	if !e.Node.Enrolled {
		return c.Skipped()
	}
	return c.OK("no fault, version " + quoted(cmp.Or(e.Node.AgentVersion, "unknown")))
}

func (e Evidence) probeHealth() diagnosis.Check {
	c := diagnosis.Check{Name: "health", Asked: "what the health checkers found last"}
	faults := e.Node.faults()
	switch {
	case len(e.Node.Conditions) == 0:
		return c.Skipped()
	case len(faults) > 0:
		return c.Failed(quoted(health.Summary(faults)), diagnosis.Node, RepairNext(e.Node.Host, e.Node.State, e.Park.OperationID != ""))
	}
	return c.OK("no fault that needs a repair")
}

func (e Evidence) probeCertificate() diagnosis.Check {
	c := diagnosis.Check{Name: "certificate", Asked: "when the node's certificate expires"}
	switch {
	case e.Node.NotAfter.IsZero():
		return c.Skipped()
	case e.Node.NotAfter.Before(e.At):
		return c.Failed("expired at "+e.Node.NotAfter.UTC().Format(time.RFC3339), diagnosis.Node, "the agent recovers automatically when it runs")
	case e.Node.RenewBy.Before(e.At):
		return c.Failed("its renewal is overdue; it expires at "+e.Node.NotAfter.UTC().Format(time.RFC3339), diagnosis.Node, "gpuaas doctor "+e.Node.Host)
	}
	return c.OK("expires at " + e.Node.NotAfter.UTC().Format(time.RFC3339))
}

func (e Evidence) probeLock() diagnosis.Check {
	c := diagnosis.Check{Name: "identity lock", Asked: "whether the identity of the node is locked"}
	if e.Node.LockReason != "" {
		return c.Failed("locked: "+e.Node.LockReason, diagnosis.Operator, "gpuaas doctor "+e.Node.Host)
	}
	return c.OK("not locked")
}

func (e Evidence) probeNeighbors() diagnosis.Check {
	c := diagnosis.Check{Name: "neighbors", Asked: "how many nodes of the rack and the region are silent"}
	answer := fmt.Sprintf("%d of %d in region %s", e.Around.RegionSilent, e.Around.RegionNodes, quoted(e.Node.Region))
	if e.Node.Rack != "" {
		answer = fmt.Sprintf("%d of %d in rack %s, ", e.Around.RackSilent, e.Around.RackNodes, quoted(e.Node.Rack)) + answer
	}
	if e.Silent() && max(e.Around.RackSilent, e.Around.RegionSilent) > 2 {
		return c.Failed(answer, diagnosis.Network, "check the switch, the power and the network that these nodes share")
	}
	return c.OK(answer)
}

func (e Evidence) probeProvider() diagnosis.Check {
	c := diagnosis.Check{Name: "provider", Asked: "whether workers have the provider " + e.Provider.Name + ", and it answers"}
	next := "gpuaas provider show " + e.Provider.Name
	switch {
	case e.Provider.Name == "":
		return c.Skipped()
	case !e.Provider.Described:
		return c.Failed("no worker that runs has the provider", diagnosis.ControlPlane, "start a gpuaas-worker that has it")
	case e.Provider.Disabled != "":
		return c.Failed("disabled: "+e.Provider.Disabled, diagnosis.ControlPlane, next)
	case e.Provider.Failed:
		return c.Failed(quoted(e.Provider.Answer), diagnosis.Operator, next)
	case e.Provider.Asked:
		return c.OK(quoted(e.Provider.Answer))
	}
	return c.OK("described by a worker; it was not asked")
}

func (e Evidence) probeWorkloads() diagnosis.Check {
	c := diagnosis.Check{Name: "workloads", Asked: "the node's workloads, and free nodes of its SKU and region"}
	if len(e.Node.Workloads) == 0 {
		return c.OK("none")
	}
	return c.OK(fmt.Sprintf("%s: %s; free nodes: %d", text.Count(len(e.Node.Workloads), "workload"),
		quoted(strings.Join(e.Node.Workloads[:min(3, len(e.Node.Workloads))], ", ")), e.Around.Free))
}

func (e Evidence) probeRefusals() diagnosis.Check {
	c := diagnosis.Check{Name: "rejections", Asked: "requests of the node that the node API rejected since the last heartbeat"}
	if e.Refusals == 0 {
		return c.OK("none")
	}
	return c.Failed(fmt.Sprintf("%d, the last one for %s", e.Refusals, e.LastRefusal), diagnosis.Operator, "gpuaas audit --node "+e.Node.Host+" --result refused")
}

func (e Evidence) probeChanges() diagnosis.Check {
	c := diagnosis.Check{Name: "recent changes", Asked: "what changed in the last " + lifecycle.Span(cmp.Or(e.Lookback, Lookback))}
	if len(e.Changes) == 0 {
		return c.OK("nothing")
	}
	last := e.Changes[0]
	return c.OK(fmt.Sprintf("%s, the last one %s ago: %s by %s", text.Count(len(e.Changes), "change"), lifecycle.Span(e.At.Sub(last.At)), last.Action, quoted(last.Actor)))
}

// maxQuoted is how many characters of a node's or a person's text a report has.
const maxQuoted = 200

func quoted(s string) string { return text.Line(s, maxQuoted) }
