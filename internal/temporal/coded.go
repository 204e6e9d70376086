package temporal

import (
	"context"
	"fmt"
	"runtime/debug"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
)

// CodedErrors returns a worker interceptor that lets only typed errors leave
// activities; see activities.Fail. Activities type their errors themselves. The
// interceptor is a second barrier, because a history keeps the text of a foreign error,
// which may contain anything.
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
func (c *codedActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (result any, err error) {
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
