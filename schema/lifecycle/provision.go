package lifecycle

import "time"

// ActionProvision makes a node ready for work.
const ActionProvision Action = "provision"

// The phases of a provisioning.
const (
	PhaseAdopt     = "adopt"
	PhaseAgent     = "agent"
	PhaseFacts     = "facts"
	PhaseProbe     = "probe"
	PhaseSKU       = "sku"
	PhaseReady     = "ready"
	PhaseUndoAdopt = "undo-adopt"
)

func provision(Options) Plan {
	return Plan{
		Action: ActionProvision, Workflow: "Provision", Holds: true,
		Does: "Creates or adopts the machine, then checks its facts and health against the SKU.",
		From: []NodeState{NodeRegistered, NodeActive}, To: NodeActive,
		Phases: []PhaseSpec{
			{
				Name: PhaseAdopt, Title: "Get the machine from its provider", Budget: 10 * time.Minute,
				WaitingOn: AttentionProvider, Cause: "the provider's API hangs or is out of quota",
				Choices: []Choice{retry("Call the provider again. It finds a machine that an earlier call created.")},
			},
			{
				Name: PhaseAgent, Title: "Wait for the node's agent", Budget: taskBudget,
				WaitingOn: AttentionAgent, Cause: causeAgent,
				Choices: []Choice{retry("Wait for a heartbeat again.")},
			},
			{
				Name: PhaseFacts, Title: "Collect the machine's facts", Budget: taskBudget,
				WaitingOn: AttentionAgent, Cause: causeAgent,
				Choices: []Choice{retry("Collect the facts again.")},
			},
			probeNode(),
			{
				Name: PhaseSKU, Title: "Compare facts and probe with the SKU", Budget: recordBudget,
				WaitingOn: AttentionOperator, Cause: "the machine differs from its registration",
				Choices: []Choice{
					retry("Compare again. Use it after you corrected the registration."),
					{DecisionForce, "Accept the machine although it does not match its SKU.", HarmWork},
				},
			},
			record(PhaseReady, "Record the instance as running"),
		},
		Undo: &PhaseSpec{
			Name: PhaseUndoAdopt, Title: "Return the machine to its provider", Budget: 5 * time.Minute,
			WaitingOn: AttentionCompensation, Cause: "the provider's teardown hangs or is refused",
			Choices: []Choice{
				retry("Return the machine again."),
				{DecisionSkip, "Keep the machine. Its ledger entry stays open until the node is removed.", HarmNone},
			},
		},
		Cancel:   cancels(HarmFinal, "Return the machine to its provider, which deletes it if it created it."),
		Outcome:  "running",
		Instance: InstanceRunning,
	}
}

// probeNode is the health check before a node takes work.
func probeNode() PhaseSpec {
	return PhaseSpec{
		Name: PhaseProbe, Title: "Probe the node's health", Budget: taskBudget,
		WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Choice{
			retry("Probe the node again."),
			{DecisionForce, "Probe again and accept the node although a check fails. Workloads may fail on it.", HarmWork},
		},
	}
}
