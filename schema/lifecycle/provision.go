package lifecycle

import "time"

// ActionProvision makes a node ready for work.
const ActionProvision Action = "provision"

// The phases of a provisioning that have a step.
const (
	PhaseAdopt     = "adopt"
	PhaseMachine   = "machine"
	PhaseEnroll    = "enroll"
	PhaseAgent     = "agent"
	PhaseFacts     = "facts"
	PhaseProbe     = "probe"
	PhaseSKU       = "sku"
	PhaseUndoAdopt = "undo-adopt"
)

func provision(Options) Plan {
	return Plan{
		Action: ActionProvision, Workflow: "Provision", Holds: true,
		Does: "Creates or adopts the machine, then checks its facts and health against the SKU.",
		From: append(unenrolled(), NodeActive), Through: []NodeState{NodeBootstrapIssued, NodeEnrolling}, To: NodeActive,
		Phases: []PhaseSpec{
			{
				Name: PhaseAdopt, Title: "Get the machine from its provider", Budget: 10 * time.Minute,
				WaitingOn: AttentionProvider, Cause: "the provider's API does not respond, or its quota is used up",
				Choices: []Option{retry("Call the provider again; it finds a machine that an earlier call created")},
			},
			{
				Name: PhaseMachine, Title: "Wait until the machine is running", Budget: 10 * time.Minute, OnCreate: true,
				WaitingOn: AttentionProvider, Cause: "the provider does not start the machine",
				Choices: []Option{retry("Ask the provider for the machine again; a stopped one is switched on")},
			},
			{
				Name: PhaseEnroll, Title: "Wait until the new machine's agent enrolls", Budget: 10 * time.Minute, OnCreate: true,
				WaitingOn: AttentionAgent, Cause: "the machine does not boot, or it cannot reach the node API",
				Choices: []Option{waitAgain()},
			},
			{
				Name: PhaseAgent, Title: "Wait for the node's agent", Budget: taskBudget,
				WaitingOn: AttentionAgent, Cause: causeAgent,
				Choices: []Option{retry("Wait for a heartbeat again")},
			},
			{
				Name: PhaseFacts, Title: "Collect the machine's facts", Budget: taskBudget,
				WaitingOn: AttentionAgent, Cause: causeAgent,
				Choices: []Option{retry("Collect the facts again")},
			},
			probeNode(),
			{
				Name: PhaseSKU, Title: "Compare facts and probe with the SKU", Budget: recordBudget,
				WaitingOn: AttentionOperator, Cause: "the machine differs from its registration",
				Choices: []Option{
					retry("Collect the facts and compare again, after you have corrected the machine or its number of GPUs"),
					{Decision: DecisionForce, Does: "Accept the machine although it does not match its SKU", Harm: HarmWork},
				},
			},
			record("ready", "Record the instance as running"),
		},
		Undo: &PhaseSpec{
			Name: PhaseUndoAdopt, Title: "Return the machine to its provider", Budget: 5 * time.Minute,
			WaitingOn: AttentionCompensation, Cause: "the provider does not respond, or it rejects the teardown",
			Choices: []Option{
				retry("Return the machine again"),
				{Decision: DecisionSkip, Does: "Keep the machine; its ledger entry stays open until the node is removed", Harm: HarmNone},
			},
		},
		Cancel:   cancels(HarmFinal, "Return the machine to its provider, which deletes a machine that it created"),
		Outcome:  "running",
		Instance: InstanceRunning,
	}
}

// probeNode is the health check before a node accepts workloads.
func probeNode() PhaseSpec {
	return PhaseSpec{
		Name: PhaseProbe, Title: "Probe the node's health", Budget: taskBudget,
		WaitingOn: AttentionAgent, Cause: causeAgent,
		Choices: []Option{
			retry("Probe the node again"),
			{Decision: DecisionForce, Does: "Probe again and accept the node even if a check fails; workloads may fail on it", Harm: HarmWork},
		},
	}
}
