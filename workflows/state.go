package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// spec is the plan of the current phase.
func (st *state) spec() lifecycle.PhaseSpec {
	switch {
	case st.undoing:
		return *st.plan.Undo
	case st.phase < len(st.plan.Phases):
		return st.plan.Phases[st.phase]
	}
	return lifecycle.PhaseSpec{}
}

// now is the workflow's time with the precision of the database, so that a time in
// the document equals the one in a column.
func now(ctx workflow.Context) time.Time { return workflow.Now(ctx).UTC().Truncate(time.Microsecond) }

// parked reports whether the current phase waits for a decision.
func (st *state) parked() bool { return st.status.Operation.Status == lifecycle.OperationParked }

// begin marks the phase as running in the status.
func (st *state) begin(ctx workflow.Context) {
	at := now(ctx)
	p := &st.status.Operation.Phases[st.phase]
	p.State, p.Reason, p.EndedAt = lifecycle.PhaseRunning, "", nil
	p.Attempt++
	if p.StartedAt == nil {
		p.StartedAt = &at
	}
	st.status.Operation.Status = lifecycle.OperationRunning
	st.show(ctx)
}

// mark ends the phase in the status. The next write of the operation stores it.
func (st *state) mark(ctx workflow.Context, s lifecycle.PhaseState, reason string) {
	at := now(ctx)
	p := &st.status.Operation.Phases[st.phase]
	p.State, p.Reason, p.EndedAt = s, reason, &at
	st.show(ctx)
}

// searchable upserts search attributes. It fails only on a key without a name.
func (st *state) searchable(ctx workflow.Context, updates ...temporal.SearchAttributeUpdate) {
	if err := workflow.UpsertTypedSearchAttributes(ctx, updates...); err != nil {
		workflow.GetLogger(ctx).Error("cannot set search attributes", "error", err.Error())
	}
}

// document returns a copy of the whole status, for the database. A local activity
// runs beside the workflow's coroutines, so it must not share their state.
func (st *state) document() *lifecycle.OperationStatus {
	copied := clone(st.status)
	return &copied
}

func clone(s lifecycle.OperationStatus) lifecycle.OperationStatus {
	s.Operation.Phases = slices.Clone(s.Operation.Phases)
	return s
}

// name is how an operator names the node.
func (st *state) name() string {
	if st.status.Node.Host != "" {
		return st.status.Node.Host
	}
	return st.in.NodeID
}
