package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
)

// failureOf returns the typed error of a failed call: the one that an activity
// returned, or, for a timeout, the last one before it.
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
		return schema.NewError(schema.KindServiceUnavailable, "no response in time").WithReason(reasonTimeout)
	}
	return schema.NewError(schema.KindInternal, "unexpected failure")
}

// asFailure turns a typed error into the failure of an update handler.
func asFailure(e *schema.Error) error {
	if e == nil {
		return nil
	}
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}

// reasonTimeout is the reason of a call or a wait that exceeded its time.
const reasonTimeout = "timeout"

var (
	// errCanceled ends an operation's phases: an operator canceled the operation,
	// or its run in the Web UI.
	errCanceled = errors.New("operation canceled")
	// errNodeRemoved ends an operation whose node a concurrent operation removed.
	errNodeRemoved = errors.New("node removed")
)
