package lifecycle

// ActionRelease ends a quarantine.
const ActionRelease Action = "release"

func release(Options) Plan {
	return Plan{
		Action: ActionRelease, Workflow: "Release", Holds: true,
		Does: "Ends a quarantine: probes the node, lifts its cordon and puts it back into service.",
		From: []NodeState{NodeQuarantined}, To: NodeActive,
		Phases: []PhaseSpec{
			probeNode(),
			uncordonNode(),
			record(PhaseActivate, "Record the node as active"),
		},
		Cancel:  cancels(HarmNone, "Leave the node quarantined. Its cordon may be lifted already."),
		Outcome: "active",
	}
}
