package lifecycle

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// ActionEnroll issues a node's first identity.
const ActionEnroll Action = "enroll"

// The phases of an enrollment and of a reissue that have a step.
const (
	PhaseBundle = "bundle"
	PhaseClaim  = "claim"
	PhasePoll   = "poll"
)

func enroll(o Options) Plan {
	p := Plan{
		Action: ActionEnroll, Workflow: "Enroll", Holds: true,
		Does:    "Gives the node its identity: issues the bootstrap bundle and completes when the agent polls with its certificate.",
		From:    unenrolled(),
		Through: []NodeState{NodeBootstrapIssued, NodeEnrolling},
		To:      NodeActive,
		Phases: []PhaseSpec{
			{
				Name: PhaseBundle, Title: "Wait until the bootstrap bundle is issued", Budget: 5 * time.Minute,
				WaitingOn: AttentionOperator, Cause: "the bundle was not requested from the admin API",
				Hint: bootstrap, Choices: []Option{issueBundle()},
			},
			{
				Name: PhaseClaim, Title: "Wait until the agent claims its token", Budget: trust.TokenTTL,
				WaitingOn: AttentionAgent, Cause: "the bundle is not installed and its token has expired, or the node cannot reach the node API",
				Hint: bootstrap, Choices: []Option{issueBundle()},
			},
			{
				Name: PhasePoll, Title: "Wait for the agent's first authenticated poll", Budget: 10 * time.Minute,
				WaitingOn: AttentionAgent, Cause: "the agent has a certificate but cannot use it (clock, CA, network)",
				Choices: []Option{waitAgain(), issueBundle()},
			},
			record("activate", "Record the node as active"),
		},
		Cancel:            cancels(HarmNone, "Void the token and restore the node's previous state; the node can be enrolled again"),
		CancelVoidsTokens: true,
		Outcome:           "enrolled; its agent polls",
	}
	if o.Probe {
		p.Phases = slices.Insert(p.Phases, len(p.Phases)-1, probeNode())
	}
	return p
}

// bootstrap is what an operator must do for a node to claim its token.
const bootstrap = "gpuaas node bootstrap-script NODE, and run the script on the node"

// issueBundle is the choice to issue a bundle with a new token. The enrollment continues
// when the bundle is issued or its token is claimed.
func issueBundle() Option {
	return Option{Decision: DecisionBootstrap, Harm: HarmNone, Command: "gpuaas node bootstrap-script NODE",
		Does: "Print a new script with a new token for this enrollment, to run on the node"}
}

// waitAgain is the choice to wait for the same event again.
func waitAgain() Option { return retry("Wait again, after you have fixed the cause") }
