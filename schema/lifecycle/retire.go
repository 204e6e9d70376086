package lifecycle

// ActionRetire takes a node out of the pool. ActionReactivate reverses it.
const ActionRetire Action = "retire"

// PhaseRetire records the retirement.
const PhaseRetire = "retire"

func retire(o Options) Plan {
	p := Plan{
		Action: ActionRetire, Workflow: "Retire", Holds: true,
		Does: "Takes the node out of the pool, reversibly. Refused while the node runs work, unless it drains first.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined, NodeDrained}, To: NodeRetired,
		Phases:  []PhaseSpec{record(PhaseRetire, "Record the node as retired")},
		Cancel:  cancels(HarmNone, "Lift the cordon and restore the node's state. Workloads that ended stay ended."),
		Outcome: "retired",
	}
	if o.Drain {
		p.Phases = append([]PhaseSpec{cordonNode(), evictWorkloads(o)}, p.Phases...)
		p.Undo = liftCordon()
	}
	return p
}
