package lifecycle

import "time"

// ActionRemove removes a retired node permanently.
const ActionRemove Action = "remove"

// The phases of a removal.
const (
	PhaseTeardown = "teardown"
	PhaseRevoke   = "revoke"
)

func remove(Options) Plan {
	return Plan{
		Action: ActionRemove, Workflow: "Remove", Holds: true,
		Does: "Tears the machine down by its ledger, revokes the identity and voids the tokens. The row is kept.",
		From: []NodeState{NodeRetired}, Enter: NodeRemoving, To: NodeRemoved,
		Phases: []PhaseSpec{
			{
				Name: PhaseTeardown, Title: "Release everything in the node's ledger", Budget: 5 * time.Minute,
				WaitingOn: AttentionProvider, Cause: "the provider's teardown hangs or is refused",
				Choices: []Choice{
					retry("Release again. Released entries are not released twice."),
					{DecisionForce, "Remove the node although its provider confirmed no teardown. The ledger keeps the open entries.", HarmFinal},
				},
			},
			record(PhaseRevoke, "Revoke the identity, void tokens, record the node as removed"),
		},
		Cancel:       cancels(HarmNone, "Leave the node retired. Entries that were released stay released."),
		Outcome:      "removed; its identity is revoked",
		Instance:     InstanceTerminated,
		DenyIdentity: true,
	}
}
