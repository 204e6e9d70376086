package lifecycle

// ActionRelease ends a quarantine.
const ActionRelease Action = "release"

func release(Options) Plan {
	return Plan{
		Action: ActionRelease, Workflow: "Release", Holds: true,
		Does: "Ends a quarantine: probes the node's health, uncordons it and returns it to service.",
		From: []NodeState{NodeQuarantined}, To: NodeActive,
		Phases: []PhaseSpec{
			probeNode(),
			uncordonNode(),
			record("activate", "Record the node as active"),
		},
		Cancel:  cancels(HarmNone, "Leave the node quarantined; it may already be uncordoned"),
		Outcome: "active",
	}
}
