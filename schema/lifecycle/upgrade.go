package lifecycle

import "time"

// ActionUpgradeAgent replaces the node's agent by a release.
const ActionUpgradeAgent Action = "upgrade-agent"

// PhaseUpgrade runs the release on the node.
const PhaseUpgrade = "upgrade"

// upgradeBudget is the time for the download, the trial and the return to the agent before.
const upgradeBudget = 30 * time.Minute

func upgradeAgent(Options) Plan {
	return Plan{
		Action: ActionUpgradeAgent, Workflow: "UpgradeAgent", Holds: true,
		Does: "Replaces the node's agent by a signed release. The agent returns to its previous version if the new one makes no successful poll. Workloads continue.",
		From: []NodeState{NodeActive, NodeOffline, NodeQuarantined, NodeDrained, NodeRetired},
		Phases: []PhaseSpec{
			{
				Name: PhaseUpgrade, Title: "Upgrade the agent", Budget: upgradeBudget, WaitingOn: AttentionAgent, Cause: causeAgent,
				Destructive: true,
				Choices:     []Option{retry("Send the release to the agent again")},
			},
			record("upgraded", "Record the agent as upgraded"),
		},
		Cancel:  cancels(HarmNone, "End the operation; the agent may already be upgraded"),
		Outcome: "agent upgraded",
	}
}
