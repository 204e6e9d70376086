package lifecycle

import (
	"fmt"
	"slices"
	"time"
)

// Limits of the start of an operation and of the watch over open ones.
const (
	// StartWithin is how long a new operation may take to claim its node, unless
	// its input says otherwise.
	StartWithin = 5 * time.Minute
	// WatchGrace is the age at which the run of an open operation is watched.
	WatchGrace = time.Minute
)

// RunEnd is how the last run of an open operation ended without recording an outcome.
// Such an operation is abandoned, and the RunEnd is its reason.
type RunEnd string

// The ways a run can end.
const (
	RunTerminated RunEnd = "run_terminated"
	RunFailed     RunEnd = "run_failed"
	RunTimedOut   RunEnd = "run_timed_out"
	// RunClosed: the run completed or was canceled, and its outcome is not recorded.
	RunClosed RunEnd = "run_closed"
	// RunLost: Temporal has no such run.
	RunLost RunEnd = "run_lost"
)

// runEnd describes a RunEnd for operators.
type runEnd struct {
	end RunEnd
	// means completes a sentence about the run; cause is the likely cause.
	means, cause string
}

//nolint:gochecknoglobals // read-only table
var runEnds = []runEnd{
	{RunTerminated, "was terminated in Temporal",
		"someone terminated the workflow in the Temporal Web UI or CLI, or Temporal did because the run exceeded a limit"},
	{RunFailed, "failed", "a defect in the workflow; the worker's log and the workflow's history show the failure"},
	{RunTimedOut, "timed out in Temporal", "the workflow was started with a run timeout, which gpuaas never sets"},
	{RunClosed, "ended, and its outcome is not recorded", "the database rejected the outcome or was restored from a backup"},
	{RunLost, "does not exist in Temporal",
		"the workflow was deleted, Temporal was restored from a backup, or another Temporal namespace is configured"},
}

// RunEnds returns every way a run can end.
func RunEnds() []RunEnd {
	ends := make([]RunEnd, len(runEnds))
	for i, r := range runEnds {
		ends[i] = r.end
	}
	return ends
}

// The options of an abandoned operation. They are commands about the node: the
// resolve update accepts neither.
const (
	// DecisionRehydrate accepts the end of the operation; see Rehydration.
	DecisionRehydrate Decision = "rehydrate"
	// DecisionRestart starts the same action again, which supersedes the operation.
	DecisionRestart Decision = "restart"
)

// RehydrateCommand is the command line that accepts the end of a node's abandoned
// operations.
func RehydrateCommand(node string) string { return "gpuaas node rehydrate " + node }

// Rehydration is the result of gpuaas node rehydrate: the node's abandoned operations
// are recorded as failed. If no action could start in the node's state, the state before
// them is restored. The same restores the state of a node that no operation holds.
type Rehydration struct {
	Node NodeRef `json:"node"`
	// From is the node's state before the rehydration.
	From NodeState `json:"from"`
	// Ended are the operations that ended, the one that held the node first. It is
	// empty if the node has no open operation.
	Ended []EndedOperation `json:"ended"`
	// Terminated are the IDs of the operations whose open run the rehydration terminated,
	// because no record continues it: the operation had ended or is not on record. No record
	// changed.
	Terminated []string `json:"terminated,omitempty"`
	// Cordoned is true if the node rejects new workloads. The operation may have set the
	// cordon; its end removes none.
	Cordoned bool `json:"cordoned,omitempty"`
	// Next is NodeNext after the rehydration.
	Next string `json:"next,omitempty"`
}

// EndedOperation is an abandoned operation whose end was accepted.
type EndedOperation struct {
	OperationID string `json:"operation_id"`
	Action      Action `json:"action"`
	// Reason is the RunEnd of its last run.
	Reason  RunEnd `json:"reason"`
	Outcome string `json:"outcome"`
}

// NodeNext is the command that a node without an operation needs: of a node that has not
// enrolled, the one that enrolls it, or that creates its machine if its provider creates machines; of a cordoned node, the one that removes the cordon; and
// of a quarantined node without a cordon, the one that sets it, because its agent did not
// respond during the quarantine, and otherwise the one that ends the quarantine. It is empty if the node
// needs none.
func NodeNext(n NodeRef, cordoned, creates bool) string {
	switch {
	case !n.State.Enrolled() && creates:
		return "gpuaas node " + string(ActionProvision) + " " + n.Host
	case !n.State.Enrolled():
		return "gpuaas node " + string(ActionEnroll) + " " + n.Host
	case !cordoned && n.State == NodeQuarantined:
		return "gpuaas node " + string(ActionDrain) + " " + n.Host + " --cordon-only"
	case n.State == NodeQuarantined:
		return ReleaseCommand(n.Host)
	case cordoned && slices.Contains(ActionsIn(n.State), ActionUncordon):
		return "gpuaas node " + string(ActionUncordon) + " " + n.Host
	}
	return ""
}

// ReleaseCommand is the command that returns a quarantined node to service.
func ReleaseCommand(host string) string {
	return "gpuaas node " + string(ActionRelease) + " " + host
}

// Without returns the state of a node in state s without its operation, which started
// in state prior: prior if no action can start in s, and otherwise s. Removal is final.
func (s NodeState) Without(prior NodeState) NodeState {
	if s.Refusing() || len(ActionsIn(s)) > 0 {
		return s
	}
	return prior
}

// Abandoned describes an abandoned operation of the plan on a node, which was in state
// prior before it, and the options, the least harmful first. The restart, with the options o
// of the operation, is an option if the action can start. The caller adds the phase and the
// time.
func (p Plan) Abandoned(n NodeRef, prior NodeState, o Options, end RunEnd) Stuck {
	next, to := RehydrateCommand(n.Host), n.State
	if p.Holds {
		to = to.Without(prior)
	}
	s := Stuck{
		WaitingOn: AttentionOperator, Reason: string(end), Next: next,
		Message: "the operation does not continue: its workflow run " + string(end),
		Options: []Option{{Decision: DecisionRehydrate, Command: next, Does: p.rehydrates(n, to), Harm: HarmNone}},
	}
	for _, r := range runEnds {
		if r.end == end {
			s.Message, s.Cause = "the operation does not continue: its workflow run "+r.means, r.cause
		}
	}
	if slices.Contains(p.From, to) && (p.Action != ActionUpgradeAgent || o.AgentVersion != "") {
		s.Options = append(s.Options, Option{Decision: DecisionRestart, Harm: p.Harm(),
			Command: "gpuaas node " + string(p.Action) + " " + n.Host + p.flags(o),
			Does:    "Start the action again as a new operation, and record this one as failed"})
	}
	return s
}

func (p Plan) rehydrates(n NodeRef, to NodeState) string {
	does := fmt.Sprintf("Record the operation as failed; the node stays %s", n.State)
	if n.State != to {
		does = fmt.Sprintf("Record the operation as failed and restore the node's state, %s", to)
	}
	switch {
	case to == NodeQuarantined:
		does += " until " + ReleaseCommand(n.Host)
	case p.Undo == nil:
	case p.Undo.Name == PhaseUndoTeardown:
		does += "; if the machine is gone, run gpuaas node terminate again"
	case p.Undo.Name == PhaseUndoCordon:
		does += "; if the operation cordoned the node, it stays cordoned until gpuaas node uncordon"
	}
	return does
}

// Harm is the worst damage that the action may cause.
func (p Plan) Harm() Harm {
	switch {
	case p.Final():
		return HarmFinal
	case p.phase(PhaseDrain) != nil:
		return HarmWork
	}
	return HarmNone
}

func (p Plan) phase(name string) *PhaseSpec {
	if i := slices.IndexFunc(p.Phases, func(s PhaseSpec) bool { return s.Name == name }); i >= 0 {
		return &p.Phases[i]
	}
	return nil
}
