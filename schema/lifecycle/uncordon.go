package lifecycle

// ActionUncordon lifts the cordon that drain --cordon-only set.
const ActionUncordon Action = "uncordon"

// The phases of an uncordon.
const (
	PhaseUncordon   = "uncordon"
	PhaseUncordoned = "uncordoned"
)

func uncordon(Options) Plan {
	return Plan{
		Action: ActionUncordon, Workflow: "Uncordon", Holds: true,
		Does: "Lifts the cordon of a node that is in service. The node's state does not change.",
		From: []NodeState{NodeActive, NodeOffline},
		Phases: []PhaseSpec{
			uncordonNode(),
			record(PhaseUncordoned, "Record the node as uncordoned"),
		},
		Cancel:  cancels(HarmNone, "End the operation. The cordon may be lifted already."),
		Outcome: "uncordoned; it takes new work",
	}
}

func uncordonNode() PhaseSpec {
	return PhaseSpec{
		Name: PhaseUncordon, Title: "Lift the node's cordon", Budget: taskBudget,
		WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Choice{
			retry("Lift the cordon again."),
			{DecisionSkip, "Continue with the node still cordoned. It takes no new work.", HarmNone},
		},
	}
}
