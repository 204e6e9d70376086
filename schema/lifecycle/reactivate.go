package lifecycle

// ActionReactivate puts a retired or drained node back into service.
const ActionReactivate Action = "reactivate"

func reactivate(Options) Plan {
	probe := probeNode()
	probe.Choices = append(probe.Choices, Choice{DecisionSkip, "Put the node into service without a health check.", HarmWork})
	return Plan{
		Action: ActionReactivate, Workflow: "Reactivate", Holds: true,
		Does: "Probes the node's health, lifts its cordon and puts it back into service.",
		From: []NodeState{NodeRetired, NodeDrained}, To: NodeActive,
		Phases: []PhaseSpec{
			probe,
			uncordonNode(),
			record(PhaseActivate, "Record the node as active"),
		},
		Cancel:  cancels(HarmNone, "Restore the node's state. Its cordon may be lifted already."),
		Outcome: "active",
	}
}
