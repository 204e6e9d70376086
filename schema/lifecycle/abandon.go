package lifecycle

import (
	"time"
)

// An operation is abandoned when it is open in the database and no run of its
// workflow is open in Temporal. Nothing continues it; an operator accepts its end.

// The limits of the watch over open operations.
const (
	// WatchGrace is the age at which an open operation is watched: a run that was
	// just started may not be visible yet.
	WatchGrace = time.Minute
	// StartWithin is how long a new operation may take to claim its node, unless
	// its input says otherwise.
	StartWithin = 5 * time.Minute
)

// RunEnd is how the last run of an operation ended without recording an outcome. It
// is the reason code of an abandoned operation.
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

// RunEnds returns every way a run can end.
func RunEnds() []RunEnd {
	return []RunEnd{RunTerminated, RunFailed, RunTimedOut, RunClosed, RunLost}
}

// The options of an abandoned operation. They are commands about the node: the
// resolve update accepts neither.
const (
	// DecisionRehydrate accepts the end of the operation; see Rehydration.
	DecisionRehydrate Decision = "rehydrate"
	// DecisionRestart starts the same action again, which ends the abandoned one.
	DecisionRestart Decision = "restart"
)

// Rehydration is the result of gpuaas node rehydrate: the node's abandoned operations
// ended as failed, and the node's state is the one before them if no action could start
// in its state.
type Rehydration struct {
	Node NodeRef `json:"node"`
	// From is the node's state before.
	From NodeState `json:"from"`
	// Ended are the operations that ended, the one that held the node first. It is
	// empty if the node has no open operation.
	Ended []EndedOperation `json:"ended"`
}

// EndedOperation is an abandoned operation whose end was accepted.
type EndedOperation struct {
	OperationID string `json:"operation_id"`
	Action      Action `json:"action"`
	// Reason is the RunEnd of its last run.
	Reason  string `json:"reason"`
	Outcome string `json:"outcome"`
}

// Abandoned describes the plan's operation after its last run ended without an
// outcome.
func (p Plan) Abandoned(node, operationID string, end RunEnd, phase string, since time.Time) Stuck {
	return Stuck{Phase: phase, WaitingOn: AttentionOperator, Reason: string(end), Since: since}
}
