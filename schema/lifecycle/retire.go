package lifecycle

// ActionRetire takes a node out of the pool. ActionReactivate reverses it.
const ActionRetire Action = "retire"

func retire(o Options) Plan {
	phases := []PhaseSpec{tryCordon()}
	if o.Drain {
		phases = []PhaseSpec{cordonNode(), evictWorkloads(o)}
	}
	return Plan{
		Action: ActionRetire, Workflow: "Retire", Holds: true,
		Does: "Cordons the node and takes it out of the pool; reactivate reverses it. Rejected while the node runs workloads, unless it is drained first.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined, NodeDrained}, To: NodeRetired,
		Phases:  append(phases, record("retire", "Record the node as retired")),
		Undo:    undoCordon(),
		Cancel:  cancels(HarmNone, "Uncordon the node and restore its previous state; workloads that ended are not restarted"),
		Outcome: "retired",
	}
}
