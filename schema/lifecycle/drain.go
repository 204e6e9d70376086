package lifecycle

import "time"

// ActionDrain cordons a node and drains its workloads.
const ActionDrain Action = "drain"

// The phases of a drain that have a step.
const (
	PhaseCordon     = "cordon"
	PhaseDrain      = "drain"
	PhaseUndoCordon = "undo-cordon"
)

// DefaultDrainTimeout is how long a drain waits for workloads to end.
const DefaultDrainTimeout = 10 * time.Minute

// drainGrace is added to the agent's own deadline, so that the agent's report of
// blocked workloads arrives before the phase's budget ends.
const drainGrace = 2 * time.Minute

const causeBlocked = "some workloads did not end before the deadline"

func drain(o Options) Plan {
	p := Plan{
		Action: ActionDrain, Workflow: "Drain", Holds: true,
		Does: "Cordons the node and waits until its workloads end or a deadline passes. Canceling restores the previous state.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined}, Enter: NodeDraining, To: NodeDrained,
		Phases:  []PhaseSpec{cordonNode(), evictWorkloads(o), record("drained", "Record the node as drained")},
		Undo:    undoCordon(),
		Cancel:  cancels(HarmNone, "Uncordon the node and restore its previous state; workloads that ended are not restarted"),
		Outcome: "drained",
	}
	if o.CordonOnly {
		p.To, p.Outcome = "", "cordoned; running workloads continue"
		p.Phases = []PhaseSpec{cordonNode(), record("cordoned", "Record the node as cordoned")}
	}
	return p
}

func cordonNode() PhaseSpec {
	return PhaseSpec{
		Name: PhaseCordon, Title: "Cordon the node", Budget: taskBudget, WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{
			retry("Cordon the node again"),
			{Decision: DecisionSkip, Does: "Continue without the cordon; the node may accept new workloads", Harm: HarmWork},
		},
	}
}

// tryCordon is a cordon that does not hold up the operation when the agent is silent.
func tryCordon() PhaseSpec {
	cordon := cordonNode()
	cordon.Budget, cordon.BestEffort = time.Minute, true
	return cordon
}

func evictWorkloads(o Options) PhaseSpec {
	return PhaseSpec{
		Name: PhaseDrain, Title: "Drain the node's workloads", Budget: o.DrainTimeout() + drainGrace,
		WaitingOn: AttentionOperator, Cause: causeBlocked,
		Destructive: true,
		Choices: []Option{
			{Decision: DecisionExtend, Does: "Give the workloads that block the drain another " + Span(o.DrainTimeout()) + " to end", Harm: HarmNone},
			retry("Drain again with a new deadline in " + Span(o.DrainTimeout())),
			{Decision: DecisionSkip, Does: "Continue although workloads may still run on the node", Harm: HarmWork},
			{Decision: DecisionForce, Does: "Kill the workloads that do not end within 10s, and continue although other processes may use the node", Harm: HarmWork},
		},
	}
}

// undoCordon is the compensation of a cordon.
func undoCordon() *PhaseSpec {
	return &PhaseSpec{
		Name: PhaseUndoCordon, Title: "Uncordon the node", Budget: taskBudget,
		WaitingOn: AttentionCompensation, Cause: causeAgent,
		Choices: []Option{
			retry("Uncordon the node again"),
			{Decision: DecisionSkip, Does: "Leave the node cordoned, to uncordon it later with gpuaas node uncordon", Harm: HarmNone},
		},
	}
}
