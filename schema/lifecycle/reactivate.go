package lifecycle

import "time"

// ActionReactivate returns a retired or drained node to service.
const ActionReactivate Action = "reactivate"

// PhaseIdentity gives the node a new identity: a reissue that the agent applies itself.
const PhaseIdentity = "identity"

// newIdentity is the phase at the boundary between two users of a node: a copy of the node's keys
// from before is void afterward.
func newIdentity() PhaseSpec {
	return PhaseSpec{
		Name: PhaseIdentity, Title: "Give the node a new identity", Budget: 10 * time.Minute, WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{retry("Send the agent another token for a new identity"), waitAgain()},
	}
}

func reactivate(o Options) Plan {
	probe := probeNode()
	probe.Choices = append(probe.Choices, Option{Decision: DecisionSkip, Does: "Return the node to service without a health check", Harm: HarmWork})
	phases := []PhaseSpec{probe, uncordonNode(), record("activate", "Record the node as active")}
	if o.NewIdentity {
		phases = append([]PhaseSpec{newIdentity()}, phases...)
	}
	return Plan{
		Action: ActionReactivate, Workflow: "Reactivate", Holds: true,
		Does: "Probes the node's health, uncordons it and returns it to service.",
		From: []NodeState{NodeRetired, NodeDrained}, To: NodeActive,
		Phases:  phases,
		Cancel:  cancels(HarmNone, "Restore the node's previous state; it may already be uncordoned"),
		Outcome: "active",
	}
}
