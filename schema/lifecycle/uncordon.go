package lifecycle

// ActionUncordon removes the cordon that drain --cordon-only set.
const ActionUncordon Action = "uncordon"

// PhaseUncordon lets the node accept workloads again.
const PhaseUncordon = "uncordon"

func uncordon(Options) Plan {
	return Plan{
		Action: ActionUncordon, Workflow: "Uncordon", Holds: true,
		Does: "Uncordons a node that is in service. The node's state does not change.",
		From: []NodeState{NodeActive, NodeOffline},
		Phases: []PhaseSpec{
			uncordonNode(),
			record("uncordoned", "Record the node as uncordoned"),
		},
		Cancel:  cancels(HarmNone, "End the operation; the node may already be uncordoned"),
		Outcome: "uncordoned; it accepts new workloads",
	}
}

func uncordonNode() PhaseSpec {
	return PhaseSpec{
		Name: PhaseUncordon, Title: "Uncordon the node", Budget: taskBudget,
		WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{
			retry("Uncordon the node again"),
			{Decision: DecisionSkip, Does: "Continue with the node still cordoned; it accepts no new workloads", Harm: HarmNone},
		},
	}
}
