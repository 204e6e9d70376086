package workflows

import (
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// handle registers what callers may ask and tell, before anything blocks.
func (op *operation) handle(ctx workflow.Context, a action) error {
	if err := workflow.SetQueryHandlerWithOptions(ctx, lifecycle.QueryStatus,
		func() (lifecycle.OperationStatus, error) { return op.status, nil },
		workflow.QueryHandlerOptions{Description: "The operation's phases, what it waits for and what to type next"}); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, lifecycle.UpdateSubmit, op.submit,
		workflow.UpdateHandlerOptions{Description: "Wait for the claim: accepted, or a typed refusal"}); err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, lifecycle.UpdateResolve, op.resolve,
		workflow.UpdateHandlerOptions{
			Description: "An operator's decision: retry, skip, force, cancel or extend; skip and force need a reason",
			Validator:   func(r lifecycle.ResolveRequest) error { return asFailure(op.fits(r, a)) },
		})
}

// submit answers the caller that started the operation.
func (op *operation) submit(ctx workflow.Context) (lifecycle.Operation, error) {
	if err := workflow.Await(ctx, func() bool { return op.answered }); err != nil {
		return lifecycle.Operation{}, err
	}
	return op.status.Operation, asFailure(op.refused)
}

// resolve hands a decision to the running phase and answers once it is taken
// up.
func (op *operation) resolve(ctx workflow.Context, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	op.decision = &r
	if op.interrupt != nil {
		op.interrupt()
	}
	err := workflow.Await(ctx, func() bool { return op.decision == nil || op.over })
	return op.status, err
}

// fits says why a decision cannot be taken now, or nil. The refusal leaves no
// trace in the history.
func (op *operation) fits(r lifecycle.ResolveRequest, a action) *schema.Error {
	switch {
	case !slices.Contains(lifecycle.Decisions(), r.Decision):
		return schema.NewError(schema.KindInvalidRequest, "unknown decision %q", r.Decision)
	case r.Decision.NeedsReason() && strings.TrimSpace(r.Reason) == "":
		return schema.NewError(schema.KindInvalidRequest, "the decision to %s needs a reason", r.Decision).WithReason("reason_missing")
	case op.over:
		return schema.NewError(schema.KindInvalidRequest, "the operation is over").WithReason("operation_over")
	case op.decision != nil:
		return schema.NewError(schema.KindOperationInProgress, "another decision is being taken")
	case !op.answered:
		return schema.NewError(schema.KindInvalidRequest, "the operation has not claimed its node yet")
	case !op.may(r.Decision, op.extra(a)):
		return op.unfit(r.Decision, a)
	}
	return nil
}

// extra lists what the running phase allows beyond retry, extend and cancel.
func (op *operation) extra(a action) []lifecycle.Decision {
	name := op.status.Operation.Phases[op.phase].Name
	if name == undoSpec().Name {
		return []lifecycle.Decision{lifecycle.DecisionSkip}
	}
	return a.decisions[name]
}

func (op *operation) unfit(d lifecycle.Decision, a action) *schema.Error {
	var can []string
	for _, other := range lifecycle.Decisions() {
		if op.may(other, op.extra(a)) {
			can = append(can, string(other))
		}
	}
	phase := op.status.Operation.Phases[op.phase]
	return schema.NewError(schema.KindInvalidRequest, "cannot %s in phase %s, which is %s; possible now: %s",
		d, phase.Name, phase.State, strings.Join(can, ", ")).WithReason("decision_unfit")
}
