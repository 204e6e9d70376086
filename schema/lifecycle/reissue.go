package lifecycle

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// ActionReissueEnrollment issues a new identity for a known node.
const ActionReissueEnrollment Action = "reissue-enrollment"

// reissueEnrollment ends at the node's first poll with its new identity. The
// restart command is part of the bundle and is shown nowhere else, because it
// contains the token.
func reissueEnrollment(Options) Plan {
	const (
		apply = "run the restart command of the recovery bundle on the node; if it is lost: " +
			"gpuaas op cancel NODE --reissue --reason TEXT, then gpuaas node reissue-enrollment NODE"
		inspect = "on the node: journalctl -u gpuaas-node-agent"
	)
	stop := cancels(HarmNone, "Void the reissued token; gpuaas node reissue-enrollment issues a new one")
	return Plan{
		Action: ActionReissueEnrollment, Workflow: "ReissueEnrollment",
		Does: "Issues a new token and recovery bundle. The node's state does not change.",
		From: []NodeState{NodeRegistered, NodeBootstrapIssued, NodeEnrolling, NodeActive,
			NodeOffline, NodeQuarantined, NodeDrained, NodeRetired},
		Phases: []PhaseSpec{
			{
				Name: PhaseBundle, Title: "Wait until the recovery bundle is issued", Budget: 5 * time.Minute,
				WaitingOn: AttentionOperator, Cause: "the admin API was interrupted before it issued the bundle",
				Choices: []Option{stop, waitAgain()},
			},
			{
				Name: PhaseClaim, Title: "Wait until the agent claims the new token", Budget: trust.TokenTTL,
				WaitingOn: AttentionAgent, Hint: apply,
				Cause:   "the restart command was not run on the node, or the node cannot reach the node API",
				Choices: []Option{stop, waitAgain()},
			},
			{
				Name: PhasePoll, Title: "Wait for the first poll with the new identity", Budget: 10 * time.Minute,
				WaitingOn: AttentionAgent, Hint: inspect,
				Cause:   "the agent has a certificate but cannot use it (clock, CA, network)",
				Choices: []Option{waitAgain(), stop},
			},
			record("reissued", "Record the reissue as completed"),
		},
		Cancel:            stop,
		CancelVoidsTokens: true,
		Outcome:           "reissued; its agent polls with the new identity",
	}
}
