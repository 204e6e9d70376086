package lifecycle

// ActionQuarantine takes a node out of service.
const ActionQuarantine Action = "quarantine"

func quarantine(Options) Plan {
	return Plan{
		Action: ActionQuarantine, Workflow: "Quarantine", Holds: true,
		Does: "Takes the node out of service immediately. Running workloads continue; new ones are rejected.",
		From: []NodeState{NodeActive, NodeOffline, NodeDrained}, Enter: NodeQuarantined, To: NodeQuarantined,
		Phases: []PhaseSpec{
			tryCordon(),
			record("quarantined", "Record the node as quarantined"),
		},
		Undo:    undoCordon(),
		Cancel:  cancels(HarmNone, "Uncordon the node and restore its previous state"),
		Outcome: "quarantined",
	}
}
