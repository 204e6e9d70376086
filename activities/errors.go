package activities

import (
	"context"
	"errors"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
)

// Failure converts a typed error into the error that Temporal stores: the kind is its
// type, reason and next step are its details. The cause is dropped, so that no text of
// other systems enters a history. A final failure is never retried. A kind that does not
// exist becomes KindTaskFailed.
func Failure(e *schema.Error, final bool) error {
	kind := e.Kind
	if !known(kind) {
		kind = schema.KindTaskFailed
	}
	return temporal.NewApplicationErrorWithOptions(e.Message, string(kind), temporal.ApplicationErrorOptions{
		NonRetryable: final, Details: []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}

// Typed returns the typed error in err, which may have passed through Temporal; see
// Failure. It returns nil for every other error.
func Typed(err error) *schema.Error {
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e
	}
	app, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok {
		return nil
	}
	if !known(schema.Kind(app.Type())) {
		return nil
	}
	e := &schema.Error{Kind: schema.Kind(app.Type()), Message: app.Message()}
	var info schema.ErrorInfo
	if app.HasDetails() && app.Details(&info) == nil {
		e.Reason, e.Next = info.Reason, info.Next
	}
	return e
}

func known(k schema.Kind) bool { return k.Info().Kind == k }

// Fail converts an activity's error into the one that may enter a history. The kind
// determines whether Temporal retries the activity. An untyped error loses its text.
func Fail(err error) error {
	//nolint:errorlint // identity on purpose: a wrapper includes the text of its cause, and the SDK compares ErrResultPending by identity
	switch e := err.(type) {
	case nil, *temporal.CanceledError:
		return err
	case *temporal.ApplicationError:
		if Typed(e) != nil && errors.Unwrap(e) == nil {
			return e
		}
	}
	switch {
	case err == activity.ErrResultPending, err == context.Canceled: //nolint:errorlint // as above
		return err
	case errors.Is(err, context.Canceled):
		return temporal.NewCanceledError()
	}
	e := Typed(err)
	if e == nil && errors.Is(err, context.DeadlineExceeded) {
		e = schema.NewError(schema.KindServiceUnavailable, "a service did not respond in time")
	}
	if e == nil {
		e = schema.AsError(err)
	}
	return Failure(e, !e.Kind.Info().Retry)
}
