package lifecycle

// ActionReactivate returns a retired or drained node to service.
const ActionReactivate Action = "reactivate"

func reactivate(Options) Plan {
	probe := probeNode()
	probe.Choices = append(probe.Choices, Option{Decision: DecisionSkip, Does: "Return the node to service without a health check", Harm: HarmWork})
	return Plan{
		Action: ActionReactivate, Workflow: "Reactivate", Holds: true,
		Does: "Probes the node's health, uncordons it and returns it to service.",
		From: []NodeState{NodeRetired, NodeDrained}, To: NodeActive,
		Phases: []PhaseSpec{
			probe,
			uncordonNode(),
			record("activate", "Record the node as active"),
		},
		Cancel:  cancels(HarmNone, "Restore the node's previous state; it may already be uncordoned"),
		Outcome: "active",
	}
}
