package temporal

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
)

// CodedErrors returns a worker interceptor that lets only typed errors leave
// activities; see activities.Fail. Activities type their errors themselves. The
// interceptor is a second barrier, because a history keeps the text of a foreign error,
// which may contain anything.
//
// It also ends the context of an activity before the time limit of the try; see ExecuteActivity.
func CodedErrors() interceptor.WorkerInterceptor { return &codedErrors{} }

type codedErrors struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (*codedErrors) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &codedActivity{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type codedActivity struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity implements interceptor.ActivityInboundInterceptor. A panic
// becomes KindInternal, without its text.
//
// The activity's context ends shortly before the time limit of the try. The SDK discards what
// arrives after the limit, so a service that does not respond would never be named.
func (c *codedActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (result any, err error) {
	ctx, cancel := early(ctx)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			activity.GetLogger(ctx).Error("activity panicked", "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			result, err = nil, activities.Fail(schema.NewError(schema.KindInternal, "internal error"))
		}
	}()
	result, err = c.Next.ExecuteActivity(ctx, in)
	coded := activities.Fail(err)
	if coded != err { //nolint:errorlint // identity: Fail returned the same error
		activity.GetLogger(ctx).Warn("untyped activity error; its text is withheld from the history", "type", fmt.Sprintf("%T", err))
	}
	return result, coded
}

// early returns a context that ends before that of the activity by a tenth of the time that is
// left, at most a second.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, time.Second)))
}
