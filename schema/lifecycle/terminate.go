package lifecycle

import "time"

// ActionTerminate deletes the machine of a node and keeps the node.
const ActionTerminate Action = "terminate"

// PhaseUndoTeardown finds out whether the machine of a canceled termination still exists.
const PhaseUndoTeardown = "undo-teardown"

func terminate(Options) Plan {
	return Plan{
		Action: ActionTerminate, Workflow: "Terminate", Holds: true,
		Does: "Deletes the node's machine at its provider and voids the node's identity. The node stays registered and can be provisioned again. Rejected if the provider creates no machines, and if the node reported workloads in its last heartbeat, unless it is forced.",
		From: append(unenrolled(), NodeActive, NodeOffline, NodeQuarantined, NodeDrained, NodeRetired), Enter: NodeTerminating, To: NodeRegistered,
		Phases: []PhaseSpec{
			tearDown("Delete the machine and everything else in the node's ledger",
				"Record the machine as terminated although its provider did not confirm that; it may still exist, and the ledger keeps the open entries"),
			record("terminated", "Void the identity and record the machine as terminated"),
		},
		Undo: &PhaseSpec{
			Name: PhaseUndoTeardown, Title: "Find out whether the machine still exists", Budget: 5 * time.Minute,
			WaitingOn: AttentionCompensation, Cause: "the provider does not respond, it is still deleting the machine, or the machine is switched off",
			Choices: []Option{
				retry("Ask the provider for the machine again"),
				{Decision: DecisionSkip, Does: "Restore the node's previous state although the machine may be gone; gpuaas node terminate can be started again", Harm: HarmNone},
			},
		},
		Cancel:   cancels(HarmNone, "Restore the node's previous state if the machine still exists; if it is deleted, the node ends as registered"),
		Outcome:  "terminated; the node can be provisioned again",
		Instance: InstanceTerminated,
	}
}

// tearDown is the phase that releases the node's resources. forced describes the decision to end it
// without the provider's confirmation.
func tearDown(title, forced string) PhaseSpec {
	return PhaseSpec{
		Name: PhaseTeardown, Title: title, Budget: 5 * time.Minute,
		WaitingOn: AttentionProvider, Cause: "the provider does not respond, or it rejects the teardown",
		Choices: []Option{
			retry("Release again; entries that are already released are skipped"),
			{Decision: DecisionForce, Does: forced, Harm: HarmFinal},
		},
	}
}
