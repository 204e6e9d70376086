package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
)

// failureOf reads what went wrong out of a failed call: the typed error an
// activity returned, or, for a timeout, the last typed error before it.
func failureOf(err error) *schema.Error {
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e
	}
	if app, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		e := schema.NewError(schema.Kind(app.Type()), "%s", app.Message())
		var info schema.ErrorInfo
		if app.HasDetails() && app.Details(&info) == nil {
			e.Reason, e.Next = info.Reason, info.Next
		}
		return e
	}
	if temporal.IsTimeoutError(err) {
		return schema.NewError(schema.KindServiceUnavailable, "no answer in time").WithReason("timeout")
	}
	return schema.NewError(schema.KindInternal, "unexpected failure")
}

// asFailure turns a typed error into the form an update handler answers with.
func asFailure(e *schema.Error) error {
	if e == nil {
		return nil
	}
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}

// errCancelled ends an operation's phases: an operator cancelled it, or the run
// was cancelled in the Web UI.
var errCancelled = errors.New("operation cancelled")

// errNodeRemoved ends what runs beside the operation that removed the node.
var errNodeRemoved = errors.New("node removed")
