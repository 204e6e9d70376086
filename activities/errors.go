package activities

import (
	"context"
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
)

// fail converts an activity's error into a Temporal error. The kind becomes the
// error's type and determines whether Temporal retries the activity. Causes are
// dropped, so that no text of other systems enters a history.
func fail(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return temporal.NewCanceledError()
	}
	e := schema.AsError(err)
	return coded(e, !e.Kind.Info().Retry)
}

// final is a failure that is not retried, whatever its kind.
func final(e *schema.Error) error { return coded(e, true) }

func coded(e *schema.Error, nonRetryable bool) error {
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: nonRetryable,
		Details:      []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}
