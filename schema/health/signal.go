package health

import "time"

// CheckerHeartbeat is the checker of the fault of a node that sends no heartbeats. No reporter has it: the
// node's record shows whether the fault has ended.
const CheckerHeartbeat = "heartbeat"

// SignalType names a kind of signal: an event of a node that an operator may want to know about.
type SignalType string

// The types of signals that no checker writes. A change of a condition has the type of its checker;
// see ConditionSignal.
const (
	SignalSilent     SignalType = "instance.silent"         // no heartbeat for lifecycle.SilentAfter
	SignalReturned   SignalType = "instance.returned"       // the first heartbeat after that
	SignalBooted     SignalType = "instance.booted"         // a heartbeat with another boot ID
	SignalDrift      SignalType = "instance.drift"          // the node differs from its template
	SignalSpotNotice SignalType = "instance.spot_notice"    // the provider will end the machine
	SignalQuota      SignalType = "provider_quota_exceeded" // the provider refused a machine
	SignalRecovery   SignalType = "recovery"                // a decision of the recovery about the node
)

// ConditionSignal is the type of the signal about a change of a checker's condition.
func ConditionSignal(checker string) SignalType { return SignalType("health." + checker) }

// Source is what wrote a signal.
type Source string

// The sources.
const (
	SourceHeartbeat Source = "heartbeat"
	SourceAgent     Source = "agent"         // a checker of the node agent
	SourceCluster   Source = "cluster-agent" // a checker of gpuaas-cluster-agent
	SourceWatch     Source = "watch"         // a scheduled workflow
	SourceDrift     Source = "drift"
	SourceProvider  Source = "provider"
	SourceRecovery  Source = "recovery"
)

// Signal is one event of a node. Signals are never changed; retention deletes them.
type Signal struct {
	SignalID   string     `json:"signal_id"`
	Type       SignalType `json:"type"`
	Source     Source     `json:"source"`
	NodeID     string     `json:"node_id"`
	Host       string     `json:"host,omitempty"`
	InstanceID string     `json:"instance_id,omitempty"`
	// At is when the control plane recorded the signal, by the clock of the database.
	At time.Time `json:"at"`
	// The condition that changed; zero for other signals, apart from Detail.
	Status    Status `json:"status,omitempty"`
	Component string `json:"component,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Code      int    `json:"code,omitempty"`
	Repair    Repair `json:"repair,omitempty"`
	BootID    string `json:"boot_id,omitempty"`
	// Detail is one line of at most MaxDetail printable ASCII characters. What a node reported in it
	// is untrusted.
	Detail string `json:"detail,omitempty"`
}
