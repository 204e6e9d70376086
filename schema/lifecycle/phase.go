package lifecycle

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// PhaseSpec is one row of the phase table: a named part of an operation, how
// long it may take before the operation parks, and who must act then.
type PhaseSpec struct {
	Name string
	// Title is what an operator reads.
	Title string
	// Budget is the time the phase has, from its start, before the operation
	// parks. It is the sum of all tries.
	Budget time.Duration
	Owner  Attention
	// Cause is the likely cause when the budget ends.
	Cause string
	// Hint says what somebody has to do for the phase to be reached, with NODE
	// for the node's name. Empty when it comes by itself.
	Hint string
}

// Phase names.
const (
	PhaseBundle   = "bundle"
	PhaseClaim    = "claim"
	PhasePoll     = "poll"
	PhaseAdopt    = "adopt"
	PhaseAgent    = "agent"
	PhaseFacts    = "facts"
	PhaseProbe    = "probe"
	PhaseSKU      = "sku"
	PhaseReady    = "ready"
	PhaseCordon   = "cordon"
	PhaseDrain    = "drain"
	PhaseCordoned = "cordoned"
	PhaseDrained  = "drained"
	PhaseRetire   = "retire"
	PhaseUncordon = "uncordon"
	PhaseActivate = "activate"
	PhaseTeardown = "teardown"
	PhaseRevoke   = "revoke"
	PhaseReissued = "reissued"
)

// drainGrace is what a drain's phase has beyond the agent's own deadline, so
// that the agent's report of what blocked arrives before the budget ends.
const drainGrace = 2 * time.Minute

// recordBudget is the budget of a phase that only writes a record.
const recordBudget = 5 * time.Minute

const (
	causeAgent  = "the node's agent is down, cut off or very slow"
	causeRecord = "the database or a worker is down"
)

// Phases returns the phases of an action in order. It is the one table that
// the workflows run, --dry-run prints and the status query fills in. Budgets
// come from design/architecture.md §6.
func Phases(a Action, o Options) []PhaseSpec {
	switch a {
	case ActionEnroll:
		return enrollPhases()
	case ActionProvision:
		return provisionPhases()
	case ActionDrain:
		if o.CordonOnly {
			return append(drainPhases(o), record(PhaseCordoned, "Record the node as cordoned"))
		}
		return append(drainPhases(o), record(PhaseDrained, "Record the node as drained"))
	case ActionRetire:
		return retirePhases(o)
	case ActionReactivate:
		return []PhaseSpec{
			nodeTask(PhaseProbe, "Probe the node's health"),
			nodeTask(PhaseUncordon, "Let the node take workloads again"),
			record(PhaseActivate, "Record the node as active"),
		}
	case ActionRemove:
		return []PhaseSpec{
			waiting(PhaseTeardown, "Give back what the node's ledger lists", 5*time.Minute, AttentionProvider,
				"the provider's teardown hangs or is refused"),
			record(PhaseRevoke, "Deny the identity, void tokens, record the node as removed"),
		}
	case ActionReissueEnrollment:
		return reissuePhases()
	}
	return nil
}

func enrollPhases() []PhaseSpec {
	return []PhaseSpec{
		waiting(PhaseBundle, "Wait for the bootstrap bundle to be handed out", 5*time.Minute, AttentionOperator,
			"nobody asked the admin API for the bundle"),
		waiting(PhaseClaim, "Wait for the agent to claim its token", trust.TokenTTL, AttentionAgent,
			"the bundle is not installed, or the node cannot reach the node API"),
		waiting(PhasePoll, "Wait for the agent's first authenticated poll", 10*time.Minute, AttentionAgent,
			"the agent has a certificate but cannot use it (clock, CA, network)"),
		record(PhaseActivate, "Record the node as active"),
	}
}

// reissuePhases end at the node's first poll with its new identity. The command
// that brings it there was handed out with the bundle and is shown nowhere else,
// since it holds the token.
func reissuePhases() []PhaseSpec {
	const (
		apply = "run the restart command of the recovery bundle on the node; when it is lost: " +
			"gpuaas op cancel NODE --reissue, then gpuaas node reissue-enrollment NODE"
		look = "on the node: journalctl -u gpuaas-node-agent"
	)
	return []PhaseSpec{
		waiting(PhaseBundle, "Wait for the recovery bundle to be handed out", 5*time.Minute, AttentionOperator,
			"the admin API was interrupted before it handed out the bundle"),
		waiting(PhaseClaim, "Wait for the agent to claim the new token", trust.TokenTTL, AttentionAgent,
			"the restart command was not run on the node, or the node cannot reach the node API").hint(apply),
		waiting(PhasePoll, "Wait for the first poll with the new identity", 10*time.Minute, AttentionAgent,
			"the agent has a certificate but cannot use it (clock, CA, network)").hint(look),
		record(PhaseReissued, "Record the reissue as done"),
	}
}

func provisionPhases() []PhaseSpec {
	return []PhaseSpec{
		waiting(PhaseAdopt, "Take the machine from its provider", 10*time.Minute, AttentionProvider,
			"the provider's API hangs or is out of quota"),
		waiting(PhaseAgent, "Wait for the node's agent", 5*time.Minute, AttentionAgent, causeAgent),
		nodeTask(PhaseFacts, "Collect the machine's facts"),
		nodeTask(PhaseProbe, "Probe the node's health"),
		waiting(PhaseSKU, "Compare facts and probe with the SKU", recordBudget, AttentionOperator,
			"the machine is not what was registered"),
		record(PhaseReady, "Record the instance as running"),
	}
}

func drainPhases(o Options) []PhaseSpec {
	phases := []PhaseSpec{nodeTask(PhaseCordon, "Cordon the node")}
	if o.CordonOnly {
		return phases
	}
	return append(phases, waiting(PhaseDrain, "End the node's work", o.DrainTimeout()+drainGrace,
		AttentionOperator, "work does not end by itself"))
}

func retirePhases(o Options) []PhaseSpec {
	done := record(PhaseRetire, "Record the node as retired")
	if !o.Drain {
		return []PhaseSpec{done}
	}
	o.CordonOnly = false
	return append(drainPhases(o), done)
}

func waiting(name, title string, budget time.Duration, owner Attention, cause string) PhaseSpec {
	return PhaseSpec{Name: name, Title: title, Budget: budget, Owner: owner, Cause: cause}
}

func (p PhaseSpec) hint(text string) PhaseSpec {
	p.Hint = text
	return p
}

func nodeTask(name, title string) PhaseSpec {
	return waiting(name, title, 5*time.Minute, AttentionAgent, causeAgent)
}

func record(name, title string) PhaseSpec {
	return waiting(name, title, recordBudget, AttentionOperator, causeRecord)
}
