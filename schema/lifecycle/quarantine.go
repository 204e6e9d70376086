package lifecycle

import "time"

// ActionQuarantine takes a node out of service.
const ActionQuarantine Action = "quarantine"

// PhaseQuarantined records the quarantine.
const PhaseQuarantined = "quarantined"

func quarantine(Options) Plan {
	cordon := cordonNode()
	cordon.Budget, cordon.BestEffort = time.Minute, true
	return Plan{
		Action: ActionQuarantine, Workflow: "Quarantine", Holds: true,
		Does: "Takes the node out of service at once. Running work continues, new work is refused.",
		From: []NodeState{NodeActive, NodeOffline, NodeDrained}, Enter: NodeQuarantined, To: NodeQuarantined,
		Phases: []PhaseSpec{
			cordon,
			record(PhaseQuarantined, "Record the node as quarantined"),
		},
		Undo:    liftCordon(),
		Cancel:  cancels(HarmNone, "Lift the cordon and restore the node's state."),
		Outcome: "quarantined",
	}
}
