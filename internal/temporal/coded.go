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

// CodedErrors returns the worker's interceptor that lets only coded errors out
// of activities: the kind, a message of ours, reason and next step. Activities
// code their errors themselves; this is the second wall, since the text of a
// foreign error may hold anything, and a history keeps it.
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

// ExecuteActivity implements interceptor.ActivityInboundInterceptor. A panic is
// a failure of KindInternal like any other: its text stays here as well.
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
	if coded != err { //nolint:errorlint // identity: the very same error needs no word
		activity.GetLogger(ctx).Warn("an activity's error had no code; its text is kept back", "type", fmt.Sprintf("%T", err))
	}
	return result, coded
}

// code returns err itself when all of it may enter a history, and otherwise
// what of it may.
func code(err error) error {
	//nolint:errorlint // identity on purpose: a wrapped error's text is the wrapper's too, and the SDK knows ErrResultPending bare only
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

// application is a typed error without its cause, as histories hold it.
func application(e *schema.Error) error {
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: !e.Kind.Info().Retry, Details: []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}},
	})
}
