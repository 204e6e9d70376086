package lifecycle

import (
	"fmt"
	"time"
)

// ActionDrain cordons a node and drains its workloads.
const ActionDrain Action = "drain"

// The phases of a drain.
const (
	PhaseCordon     = "cordon"
	PhaseDrain      = "drain"
	PhaseCordoned   = "cordoned"
	PhaseDrained    = "drained"
	PhaseUndoCordon = "undo-cordon"
)

// DefaultDrainTimeout is how long a drain waits for workloads to end.
const DefaultDrainTimeout = 10 * time.Minute

// drainGrace is added to the agent's own deadline, so that the agent's report of
// blocked workloads arrives before the phase's budget ends.
const drainGrace = 2 * time.Minute

func drain(o Options) Plan {
	p := Plan{
		Action: ActionDrain, Workflow: "Drain", Holds: true,
		Does: "Cordons the node and ends its work before a deadline. A cancel restores the state before.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined}, Enter: NodeDraining, To: NodeDrained,
		Phases:  []PhaseSpec{cordonNode(), evictWorkloads(o), record(PhaseDrained, "Record the node as drained")},
		Undo:    liftCordon(),
		Cancel:  cancels(HarmNone, "Lift the cordon and restore the node's state. Workloads that ended stay ended."),
		Outcome: "drained",
	}
	if o.CordonOnly {
		p.To, p.Outcome = "", "cordoned; running work continues"
		p.Phases = []PhaseSpec{cordonNode(), record(PhaseCordoned, "Record the node as cordoned")}
	}
	return p
}

func cordonNode() PhaseSpec {
	return PhaseSpec{
		Name: PhaseCordon, Title: "Cordon the node", Budget: taskBudget, WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Choice{
			retry("Cordon the node again."),
			{DecisionSkip, "Continue without the cordon. The node may accept new work, which a drain then ends.", HarmWork},
		},
	}
}

func evictWorkloads(o Options) PhaseSpec {
	return PhaseSpec{
		Name: PhaseDrain, Title: "End the node's work", Budget: o.DrainTimeout() + drainGrace,
		WaitingOn: AttentionOperator, Cause: "workloads do not end before the deadline",
		Choices: []Choice{
			{DecisionExtend, fmt.Sprintf("Give the workloads another %s to end.", o.DrainTimeout()), HarmNone},
			retry(fmt.Sprintf("Drain again with a new deadline of %s.", o.DrainTimeout())),
			{DecisionSkip, "Continue although workloads may still run on the node.", HarmWork},
			{DecisionForce, "Kill the workloads that do not end within 10s.", HarmWork},
		},
	}
}

// liftCordon is the compensation of a cordon.
func liftCordon() *PhaseSpec {
	return &PhaseSpec{
		Name: PhaseUndoCordon, Title: "Lift the cordon", Budget: taskBudget,
		WaitingOn: AttentionCompensation, Cause: causeAgent,
		Choices: []Choice{
			retry("Lift the cordon again."),
			{DecisionSkip, "Leave the node cordoned. gpuaas node uncordon lifts the cordon later.", HarmNone},
		},
	}
}
