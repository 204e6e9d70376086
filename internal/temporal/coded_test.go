package temporal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// failing runs an activity that ends as do says, in a worker with the
// interceptor, and returns what the server would keep of its failure.
func failing(t *testing.T, do func() error) error {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{CodedErrors()}})
	env.RegisterActivityWithOptions(func(context.Context) error { return do() }, activity.RegisterOptions{Name: "fails"})
	_, err := env.ExecuteActivity("fails")
	return err
}

func TestOnlyCodedErrorsLeaveActivities(t *testing.T) {
	t.Parallel()
	secret, _, _ := trust.NewToken()
	raw := errors.New("vault said no to " + secret)
	coded := temporal.NewApplicationErrorWithOptions("no", string(schema.KindNodeInUse), temporal.ApplicationErrorOptions{NonRetryable: true})
	for name, c := range map[string]struct {
		do   func() error
		kind schema.Kind
		text string
	}{
		"a raw error":                  {func() error { return raw }, schema.KindInternal, "internal error"},
		"a raw error around a coded":   {func() error { return fmt.Errorf("%s: %w", secret, coded) }, schema.KindNodeInUse, "no"},
		"a coded error with its cause": {func() error { return schema.Wrap(schema.KindNotFound, raw, "no such node") }, schema.KindNotFound, "no such node"},
		"a wrapped coded error": {func() error {
			return fmt.Errorf("%s: %w", secret, schema.NewError(schema.KindNotFound, "no such node"))
		}, schema.KindNotFound, "no such node"},
		"an application error of no kind": {func() error { return temporal.NewApplicationError(secret, secret) }, schema.KindInternal, "internal error"},
		"an application error with a cause": {func() error {
			return temporal.NewApplicationErrorWithCause("busy", string(schema.KindNodeInUse), raw)
		}, schema.KindNodeInUse, "busy"},
		"a time limit":  {func() error { return fmt.Errorf("%s: %w", secret, context.DeadlineExceeded) }, schema.KindServiceUnavailable, "a service did not respond in time"},
		"a coded error": {func() error { return coded }, schema.KindNodeInUse, "no"},
		"a panic":       {func() error { panic(secret) }, schema.KindInternal, "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := failing(t, c.do)
			require.NotContains(t, fmt.Sprintf("%+v", err), secret)
			app, ok := errors.AsType[*temporal.ApplicationError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, string(c.kind), app.Type())
			require.Equal(t, c.text, app.Message())
			require.Equal(t, !c.kind.Info().Retry, app.NonRetryable())
			require.NoError(t, errors.Unwrap(app), "no cause leaves")
		})
	}
}

func TestUnchangedErrors(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{
		"result pending": activity.ErrResultPending, "cancelled": context.Canceled, "confirmed cancel": temporal.NewCanceledError(),
	} {
		require.Same(t, want, activities.Fail(want), name)
	}
	require.Equal(t, activity.ErrResultPending, failing(t, func() error { return activity.ErrResultPending }))
	var cancelled *temporal.CanceledError
	require.ErrorAs(t, activities.Fail(fmt.Errorf("reading: %w", context.Canceled)), &cancelled)
}

func TestOnlyCodedErrorsLeaveLocalActivities(t *testing.T) {
	t.Parallel()
	secret, _, _ := trust.NewToken()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{CodedErrors()}})
	leaks := func(context.Context) error { return errors.New(secret) }
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
			StartToCloseTimeout: time.Second, RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1}})
		return workflow.ExecuteLocalActivity(ctx, leaks).Get(ctx, nil)
	})
	err := env.GetWorkflowError()
	require.ErrorContains(t, err, "internal error")
	require.NotContains(t, fmt.Sprintf("%+v", err), secret)
}

// TestServiceThatDoesNotRespondIsNamed: an activity that waits for a service until its time is
// up fails with the error of the service, which says what does not respond.
func TestServiceThatDoesNotRespondIsNamed(t *testing.T) {
	c := connect(t)
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{Interceptors: []interceptor.WorkerInterceptor{CodedErrors()}})
	w.RegisterActivityWithOptions(func(ctx context.Context, typed bool) error {
		<-ctx.Done()
		if typed {
			return schema.Wrap(schema.KindServiceUnavailable, ctx.Err(), "Vault did not respond").WithReason(lifecycle.ReasonVaultUnreachable)
		}
		return ctx.Err()
	}, activity.RegisterOptions{Name: "waits"})
	const limit = 10 * time.Second // the longest margin for the answer, which a busy machine needs
	once := &temporal.RetryPolicy{MaximumAttempts: 1}
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, typed bool) (failures []string, _ error) {
		short := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: limit, RetryPolicy: once})
		local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: limit, RetryPolicy: once})
		calls := []workflow.Future{workflow.ExecuteActivity(short, "waits", typed), workflow.ExecuteLocalActivity(local, "waits", typed)}
		for _, call := range calls {
			if e := activities.Typed(call.Get(ctx, nil)); e != nil {
				failures = append(failures, string(e.Kind)+" "+e.Reason+": "+e.Message)
			}
		}
		return failures, nil
	}, workflow.RegisterOptions{Name: "calls"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	want := map[bool]string{true: "service_unavailable vault_unreachable: Vault did not respond", false: "service_unavailable : a service did not respond in time"}
	// On a machine that stops for a second, the response is late, and Temporal's own timeout is the failure.
	for typed, text := range want {
		harness.Eventually(t, text, func() bool {
			run, err := c.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue}, "calls", typed)
			require.NoError(t, err)
			var failures []string
			require.NoError(t, run.Get(t.Context(), &failures))
			return slices.Equal(failures, []string{text, text})
		})
	}
}
