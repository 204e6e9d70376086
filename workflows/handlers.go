package workflows

import (
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// registerHandlers registers the query and the updates before anything blocks.
func (op *operation) registerHandlers(ctx workflow.Context) error {
	if err := workflow.SetQueryHandlerWithOptions(ctx, lifecycle.QueryStatus,
		func() (lifecycle.OperationStatus, error) { return op.status, nil },
		workflow.QueryHandlerOptions{Description: "The operation's phases, what it is waiting on and its options"}); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, lifecycle.UpdateSubmit, op.submit,
		workflow.UpdateHandlerOptions{Description: "Wait for the claim: accepted, or a typed refusal"}); err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, lifecycle.UpdateResolve, op.resolve,
		workflow.UpdateHandlerOptions{
			Description: "An operator's decision: " +
				`{"operation_id","phase","decision":"retry|skip|force|cancel|extend","reason","by"}; skip and force need a reason`,
			Validator: func(r lifecycle.ResolveRequest) error { return asFailure(op.validate(r)) },
		})
}

// submit answers the caller that started the operation. It uses a disconnected
// context, so that a canceled run still answers.
func (op *operation) submit(ctx workflow.Context) (lifecycle.Operation, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if err := workflow.Await(free, func() bool { return op.answered }); err != nil {
		return lifecycle.Operation{}, err
	}
	return op.status.Operation, asFailure(op.refused)
}

// resolve passes a decision to the current phase and returns when the phase took
// it. A decision that the operation dropped because it was canceled or ended
// first is refused.
func (op *operation) resolve(ctx workflow.Context, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	mine := &r
	op.decision = mine
	if op.interrupt != nil {
		op.interrupt()
	}
	if err := workflow.Await(free, func() bool { return op.decision != mine || op.closed }); err != nil {
		return op.status, err
	}
	if op.decision == mine || op.taken != mine {
		return op.status, asFailure(schema.NewError(schema.KindDecisionOutdated,
			"the operation ended or was canceled before it took the decision to %s", r.Decision).WithReason("operation_over"))
	}
	return op.status, nil
}

// validate says why a decision cannot be taken now, or returns nil. A refusal
// leaves no event in the history.
func (op *operation) validate(r lifecycle.ResolveRequest) *schema.Error {
	switch {
	case !slices.Contains(lifecycle.Decisions(), r.Decision):
		return schema.NewError(schema.KindInvalidRequest, "unknown decision %q", r.Decision)
	case r.Decision.NeedsReason() && strings.TrimSpace(r.Reason) == "":
		return schema.NewError(schema.KindInvalidRequest, "the decision to %s needs a reason", r.Decision).WithReason("reason_missing")
	case strings.TrimSpace(r.Reason) == lifecycle.ReasonPlaceholder:
		return schema.NewError(schema.KindInvalidRequest, "the reason %q is the placeholder of the printed command; give a reason",
			lifecycle.ReasonPlaceholder).WithReason("reason_missing")
	}
	if e := op.outdated(r); e != nil {
		return e
	}
	switch {
	case op.status.Operation.Status.Ended():
		return schema.NewError(schema.KindInvalidRequest, "the operation has ended").WithReason("operation_over")
	case op.decision != nil:
		return schema.NewError(schema.KindOperationInProgress, "the operation is taking another decision")
	case !op.answered:
		return schema.NewError(schema.KindInvalidRequest, "the operation has not claimed its node yet")
	case !op.allows(r.Decision):
		return op.unfit(r.Decision)
	}
	return nil
}

// outdated refuses a decision that is addressed to another operation, phase or
// park than the current one.
func (op *operation) outdated(r lifecycle.ResolveRequest) *schema.Error {
	o := op.status.Operation
	var was, is string
	switch phase := op.spec().Name; {
	case r.OperationID != "" && r.OperationID != o.OperationID:
		was, is = "operation "+r.OperationID, "operation "+o.OperationID
	case r.Phase != "" && r.Phase != phase:
		was, is = "phase "+r.Phase, "phase "+phase
	case r.StuckSince != nil && o.Stuck == nil:
		was, is = "the park since "+clock(*r.StuckSince), "no park"
	case r.StuckSince != nil && !r.StuckSince.Equal(o.Stuck.Since):
		was, is = "the park since "+clock(*r.StuckSince), "the park since "+clock(o.Stuck.Since)
	default:
		return nil
	}
	return schema.NewError(schema.KindDecisionOutdated, "the decision to %s is about %s; now there is %s", r.Decision, was, is).
		WithNext(lifecycle.OpCommand("show", o.Action, op.name()))
}

// allows reports whether the decision is possible now. Retry and extend need a
// parked phase. Nothing may be decided while the outcome is recorded.
func (op *operation) allows(d lifecycle.Decision) bool {
	if op.closed {
		return false
	}
	switch spec := op.spec(); d {
	case lifecycle.DecisionCancel:
		return !op.undoing
	case lifecycle.DecisionRetry, lifecycle.DecisionExtend:
		return op.status.Operation.Stuck != nil && spec.Allows(d)
	default:
		return spec.Allows(d)
	}
}

func (op *operation) unfit(d lifecycle.Decision) *schema.Error {
	var possible []string
	for _, other := range lifecycle.Decisions() {
		if op.allows(other) {
			possible = append(possible, string(other))
		}
	}
	if possible == nil {
		possible = []string{"nothing"}
	}
	phase := op.status.Operation.Phases[op.phase]
	return schema.NewError(schema.KindInvalidRequest, "cannot %s in phase %s, which is %s; possible now: %s",
		d, phase.Name, phase.State, strings.Join(possible, ", ")).WithReason("decision_unfit")
}
