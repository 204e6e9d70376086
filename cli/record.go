package cli

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// record reads the followed operation's row from the admin API, for when no
// worker answers.
func (e *env) record(ctx context.Context, r followRequest) (lifecycle.OperationStatus, error) {
	rows, err := e.rows(ctx, r.target.id, false)
	if err != nil {
		return lifecycle.OperationStatus{}, err
	}
	for _, row := range rows {
		if row.OperationID == r.operation.OperationID {
			return statusOfRow(row, r.options), nil
		}
	}
	return lifecycle.OperationStatus{}, schema.Errorf(schema.KindServiceUnavailable,
		"the admin API has no record of operation %s yet", r.operation.OperationID)
}

// rows lists operations through the admin API, within lookupBudget.
func (e *env) rows(ctx context.Context, nodeID string, open bool) ([]wire.OperationSummary, error) {
	api, err := e.api()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupBudget)
	defer cancel()
	return api.operations(ctx, nodeID, open)
}

// statusOfRow renders a database row in the shape of the status query. The row
// knows the current phase only, so the phases before it count as completed.
func statusOfRow(row wire.OperationSummary, o lifecycle.Options) lifecycle.OperationStatus {
	started := row.StartedAt
	op := lifecycle.Operation{
		OperationID: row.OperationID, WorkflowID: row.WorkflowID, RunID: row.RunID, Action: row.Action,
		Status: row.Status, Stuck: row.Stuck, Actor: row.Actor, Reason: row.Reason, CorrelationID: row.CorrelationID,
		OpSeq: row.OpSeq, StartedAt: &started, EndedAt: row.EndedAt, Outcome: row.Outcome,
		Phases: phasesOfRow(row, o),
	}
	return lifecycle.OperationStatus{Operation: op, Node: lifecycle.NodeRef{NodeID: row.NodeID, Host: row.Host}}
}

func phasesOfRow(row wire.OperationSummary, o lifecycle.Options) []lifecycle.Phase {
	specs := lifecycle.PhasesOf(row.Action, o)
	at := phaseIndex(specs, row.Phase)
	// The row holds no options: its phase may be one that only an option adds.
	for _, o := range []lifecycle.Options{{Drain: true}, {CordonOnly: true}} {
		if variant := lifecycle.PhasesOf(row.Action, o); at < 0 && phaseIndex(variant, row.Phase) >= 0 {
			specs, at = variant, phaseIndex(variant, row.Phase)
		}
	}
	out := make([]lifecycle.Phase, len(specs))
	for i, s := range specs {
		out[i] = lifecycle.Phase{Name: s.Name, Title: s.Title, State: stateAt(row.Status, i, at), Attempt: 1}
	}
	return out
}

func phaseIndex(specs []lifecycle.PhaseSpec, name string) int {
	for i, s := range specs {
		if s.Name == name {
			return i
		}
	}
	return -1
}

// stateAt is the state of phase i of an operation that is in phase at.
func stateAt(s lifecycle.OperationState, i, at int) lifecycle.PhaseState {
	switch {
	case s == lifecycle.OperationCompleted, i < at:
		return lifecycle.PhaseCompleted
	case i > at:
		return lifecycle.PhasePending
	}
	switch s {
	case lifecycle.OperationParked:
		return lifecycle.PhaseParked
	case lifecycle.OperationFailed:
		return lifecycle.PhaseFailed
	case lifecycle.OperationCanceled, lifecycle.OperationRejected:
		return lifecycle.PhaseCanceled
	}
	return lifecycle.PhaseRunning
}
