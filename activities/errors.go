package activities

import (
	"context"
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
)

// fail is the one place that turns a failure into what Temporal retries or
// does not: the kind becomes the error's type, its table row decides about
// retries. Causes stay on this side, so that no foreign text reaches a history.
func fail(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return temporal.NewCanceledError()
	}
	e := schema.AsError(err)
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: !e.Kind.Row().Retry,
		Details:      []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}
