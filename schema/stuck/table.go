package stuck

import (
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Scope is what a row is about.
type Scope string

// The scopes.
const (
	// ScopeRequest: Temporal accepted an operation that is not on record.
	ScopeRequest Scope = "request"
	// ScopeOperation: an operation is in a phase. It parks when the limit ends.
	ScopeOperation Scope = "operation"
	// ScopeNode: a node is in a state, whether or not an operation holds it.
	ScopeNode Scope = "node"
)

// The names of the rows, which are the label row of the gauge gpuaas_stuck_nodes.
const (
	RowPending       = "pending"
	RowProvisioning  = "provisioning"
	RowBootstrapping = "bootstrapping"
	RowSilent        = "silent"
	RowCertificate   = "certificate"
	RowDraining      = "draining"
	RowTerminating   = "terminating"
)

// The reasons of rows that no operation parks with.
const (
	// ReasonUnclaimed: no worker has claimed the operation.
	ReasonUnclaimed = "not_claimed_yet"
	// ReasonNodeSilent: the node sends no heartbeat.
	ReasonNodeSilent = "node_silent"
	// ReasonCertificateOverdue: the node polls, and its certificate should have been renewed.
	ReasonCertificateOverdue = "certificate_overdue"
	// ReasonDrainLong: the node drains for long, and its drain has not parked.
	ReasonDrainLong = "drain_long"
	// ReasonTeardownLong: the node is in a state that an operation must end, and none holds it.
	ReasonTeardownLong = "teardown_unowned"
)

// DrainingAfter is how long a node may drain, whatever the deadline of its drain, before it is
// listed.
const DrainingAfter = 30 * time.Minute

// PendingAfter is how long an operation may wait for its claim.
const PendingAfter = 5 * time.Minute

// RenewBy is the share of the lifetime of a certificate after which its renewal is overdue for
// an operator. Agents renew at half of it.
const RenewBy = 0.75

// Row is one row of the stuck table.
type Row struct {
	Name  string
	Scope Scope
	// States are the states of nodes that the row is about.
	States []lifecycle.NodeState
	// Action and Phase are the phase of a row about operations.
	Action lifecycle.Action
	Phase  string
	// After is the limit, and When what it counts from. A provider's own limit replaces that of a
	// phase; see lifecycle.Plan.On.
	After time.Duration
	When  string
	// Reason is the code of the row, and WaitingOn who must act.
	Reason    string
	WaitingOn lifecycle.Attention
	// Cause is the likely cause, without a period.
	Cause string
	// Probes are the questions that find the cause, as package cause asks them.
	Probes []string
	// Options are the possible commands with NODE for the node's name, the least harmful first.
	Options []lifecycle.Option
}

// Table returns the rows in the order of a node's lifecycle.
func Table() []Row {
	node := []lifecycle.NodeState{lifecycle.NodeActive, lifecycle.NodeOffline, lifecycle.NodeDraining, lifecycle.NodeQuarantined}
	return []Row{
		{
			Name: RowPending, Scope: ScopeRequest, After: PendingAfter, When: "the request was accepted",
			Reason: ReasonUnclaimed, WaitingOn: lifecycle.AttentionOperator,
			Cause:  "no worker polls the task queue, or the database does not respond to the claim",
			Probes: []string{"task queue", "services"},
			Options: []lifecycle.Option{
				{Decision: "start-worker", Command: "systemctl start gpuaas-worker", Does: "Start a worker, which claims the node if the request has not expired", Harm: lifecycle.HarmNone},
			},
		},
		ofPhase(RowProvisioning, lifecycle.ActionProvision, lifecycle.PhaseAdopt, "the provider was called", lifecycle.ReasonProviderSilent,
			"provider", "task queue"),
		ofPhase(RowBootstrapping, lifecycle.ActionProvision, lifecycle.PhaseAgent, "the agent's first heartbeat was due", "agent_silent",
			"heartbeat", "agent fault", "certificate", "recent changes"),
		{
			Name: RowSilent, Scope: ScopeNode, States: node, After: lifecycle.SilentAfter, When: "the last heartbeat",
			Reason: ReasonNodeSilent, WaitingOn: lifecycle.AttentionAgent,
			Cause:  "the node lost power or network, or its agent ended",
			Probes: []string{"heartbeat", "certificate", "identity lock", "neighbors", "recent changes"},
			Options: []lifecycle.Option{
				{Decision: "doctor", Command: "gpuaas doctor NODE", Does: "Find what keeps the node from polling; it changes nothing", Harm: lifecycle.HarmNone},
				{Decision: "quarantine", Command: "gpuaas node quarantine NODE --reason " + lifecycle.ReasonPlaceholder, Does: "Take the node out of service until the cause is corrected", Harm: lifecycle.HarmNone},
			},
		},
		{
			Name: RowCertificate, Scope: ScopeNode, States: node, After: 0, When: "three quarters of the lifetime of the certificate",
			Reason: ReasonCertificateOverdue, WaitingOn: lifecycle.AttentionAgent,
			Cause:  "the agent polls, and its renewals fail: the node API rejects them, or the agent cannot store the certificate",
			Probes: []string{"certificate", "agent fault", "rejections"},
			Options: []lifecycle.Option{
				{Decision: "doctor", Command: "gpuaas doctor NODE", Does: "Find why the renewals fail; it changes nothing", Harm: lifecycle.HarmNone},
				{Decision: "reissue-enrollment", Command: "gpuaas node reissue-enrollment NODE --reason " + lifecycle.ReasonPlaceholder, Does: "Issue a new identity, which the node's administrator must install", Harm: lifecycle.HarmNone},
			},
		},
		{
			Name: RowDraining, Scope: ScopeNode, States: []lifecycle.NodeState{lifecycle.NodeDraining}, After: DrainingAfter, When: "the node began to drain",
			Reason: ReasonDrainLong, WaitingOn: lifecycle.AttentionOperator,
			Cause:  "the workloads do not end, or no other node has the capacity for them",
			Probes: []string{"workloads", "heartbeat"},
			Options: []lifecycle.Option{
				{Decision: "show", Command: "gpuaas op show NODE", Does: "Show the phase of the drain, its deadline and the workloads that it waits for; it changes nothing", Harm: lifecycle.HarmNone},
				{Decision: lifecycle.DecisionCancel, Command: "gpuaas op cancel NODE --reason " + lifecycle.ReasonPlaceholder, Does: "End the drain and restore the node's previous state", Harm: lifecycle.HarmNone},
			},
		},
		ofPhase(RowTerminating, lifecycle.ActionTerminate, lifecycle.PhaseTeardown, "the teardown began", lifecycle.ReasonProviderSilent,
			"provider", "task queue"),
		{
			Name: RowTerminating, Scope: ScopeNode, States: []lifecycle.NodeState{lifecycle.NodeTerminating, lifecycle.NodeRemoving},
			After: 5 * time.Minute, When: "the node entered the state",
			Reason: ReasonTeardownLong, WaitingOn: lifecycle.AttentionOperator,
			Cause:  "no operation ends the node's termination",
			Probes: []string{"task queue", "services"},
			Options: []lifecycle.Option{
				{Decision: "rehydrate", Command: lifecycle.RehydrateCommand("NODE"), Does: "Record the end of an abandoned operation and restore the node's state", Harm: lifecycle.HarmNone},
			},
		},
	}
}

// ofPhase is the row of a phase. Limit, cause, party and options are those of its plan.
func ofPhase(name string, a lifecycle.Action, phase, when, reason string, probes ...string) Row {
	r := Row{Name: name, Scope: ScopeOperation, Action: a, Phase: phase, When: when, Reason: reason, Probes: probes}
	plan, _ := lifecycle.PlanOf(a, lifecycle.Options{})
	i := slices.IndexFunc(plan.Phases, func(s lifecycle.PhaseSpec) bool { return s.Name == phase })
	if i < 0 {
		return r
	}
	spec := plan.Phases[i]
	r.After, r.WaitingOn, r.Cause = spec.Budget, spec.WaitingOn, spec.Cause
	for _, o := range plan.ChoicesIn(spec) {
		if o.Command == "" {
			o.Command = lifecycle.DecisionCommand(o.Decision, a, "NODE", "")
		}
		r.Options = append(r.Options, o)
	}
	return r
}

// Find returns the row of a scope. ok is false if there is none.
func Find(name string, of Scope) (r Row, ok bool) {
	for _, r := range Table() {
		if r.Name == name && r.Scope == of {
			return r, true
		}
	}
	return Row{}, false
}

// Stuck describes a node or a request in the form of a parked operation, since a time. cause
// replaces the row's if it is not empty.
func (r Row) Stuck(host, message, cause string, since time.Time) lifecycle.Stuck {
	s := lifecycle.Stuck{Phase: r.Name, WaitingOn: r.WaitingOn, Reason: r.Reason, Message: message, Since: since, Cause: r.Cause}
	if cause != "" {
		s.Cause = cause
	}
	for _, o := range r.Options {
		o.Command = strings.ReplaceAll(o.Command, "NODE", host)
		s.Options = append(s.Options, o)
	}
	if len(s.Options) > 0 {
		s.Next = s.Options[0].Command
	}
	return s
}
