package temporal

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
)

// CodedErrors returns a worker interceptor that lets only typed errors leave
// activities: kind, message, reason and next step. Activities type their errors
// themselves. The interceptor is a second barrier, because a history keeps the text
// of a foreign error, which may contain anything.
func CodedErrors() interceptor.WorkerInterceptor { return &codedErrors{} }

type codedErrors struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (*codedErrors) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	i := &codedActivity{}
	i.Next = next
	return i
}

type codedActivity struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity implements interceptor.ActivityInboundInterceptor. A panic
// becomes KindInternal, without its text.
func (c *codedActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			activity.GetLogger(ctx).Error("activity panicked", "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			result, err = nil, internalError()
		}
	}()
	result, err = c.Next.ExecuteActivity(ctx, in)
	if err == nil {
		return result, nil
	}
	coded := code(err)
	if coded != err { //nolint:errorlint // identity: code returned the same error
		activity.GetLogger(ctx).Warn("untyped activity error; its text is withheld from the history", "type", fmt.Sprintf("%T", err))
	}
	return result, coded
}

// code returns err itself when it may enter a history, and otherwise a typed error
// without its text.
func code(err error) error {
	//nolint:errorlint // identity on purpose: a wrapper includes the text of its cause, and the SDK compares ErrResultPending by identity
	switch e := err.(type) {
	case *temporal.ApplicationError:
		if known(schema.Kind(e.Type())) && errors.Unwrap(e) == nil {
			return e
		}
	case *temporal.CanceledError:
		return e
	case *schema.Error:
		return application(e)
	}
	switch {
	case err == activity.ErrResultPending, err == context.Canceled: //nolint:errorlint // as above
		return err
	case errors.Is(err, context.Canceled):
		return temporal.NewCanceledError()
	}
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return application(e)
	}
	if e := refusal(err); e != nil {
		return application(e)
	}
	return internalError()
}

func internalError() error {
	return application(schema.NewError(schema.KindInternal, "internal error"))
}

// application converts a typed error, without its cause, for a history.
func application(e *schema.Error) error {
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: !e.Kind.Info().Retry, Details: []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}
