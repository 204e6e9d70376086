package lifecycle

// ActionRetire takes a node out of the pool. ActionReactivate reverses it.
const ActionRetire Action = "retire"

// PhaseIdle cordons the node and checks that it runs no workloads.
const PhaseIdle = "idle"

func retire(o Options) Plan {
	phases := []PhaseSpec{checkIdle()}
	switch {
	case o.Drain:
		phases = []PhaseSpec{cordonNode(), evictWorkloads(o)}
	case o.Force:
		phases = []PhaseSpec{tryCordon()}
	}
	return Plan{
		Action: ActionRetire, Workflow: "Retire", Holds: true,
		Does: "Cordons the node and takes it out of the pool; reactivate reverses it. Rejected while the node runs workloads, unless it is drained first. The agent lists the workloads after the cordon; without that list, a retire parks.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined, NodeDrained}, To: NodeRetired,
		Phases:  append(phases, record("retire", "Record the node as retired")),
		Undo:    undoCordon(),
		Cancel:  cancels(HarmNone, "Uncordon the node and restore its previous state; workloads that ended are not restarted"),
		Outcome: "retired",
	}
}

// checkIdle asks the agent what runs after the cordon. The last heartbeat is not enough: a
// workload may have started since, and a silent node may run anything.
func checkIdle() PhaseSpec {
	return PhaseSpec{
		Name: PhaseIdle, Title: "Cordon the node and check that it runs no workloads", Budget: taskBudget,
		WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{
			retry("Cordon the node and list its workloads again"),
			{Decision: DecisionSkip, Does: "Retire the node although workloads may still run on it", Harm: HarmWork},
		},
	}
}
