package lifecycle

// ActionRemove permanently removes a node that is retired or has never enrolled.
const ActionRemove Action = "remove"

// PhaseTeardown releases the node's resources.
const PhaseTeardown = "teardown"

func remove(Options) Plan {
	return Plan{
		Action: ActionRemove, Workflow: "Remove", Holds: true,
		Does: "Releases everything in the node's resource ledger, revokes its identity and voids its tokens. The inventory keeps the record. Rejected if the node reported workloads in its last heartbeat, unless it is forced.",
		From: append(unenrolled(), NodeRetired), Enter: NodeRemoving, To: NodeRemoved,
		Phases: []PhaseSpec{
			tearDown("Release everything in the node's ledger",
				"Remove the node although its provider did not confirm the teardown; the ledger keeps the open entries"),
			record("revoke", "Revoke the identity, void the tokens and record the node as removed"),
		},
		Cancel:       cancels(HarmNone, "Restore the node's previous state; entries that are already released are not restored"),
		Outcome:      "removed; its identity is revoked",
		Instance:     InstanceTerminated,
		DenyIdentity: true,
	}
}
