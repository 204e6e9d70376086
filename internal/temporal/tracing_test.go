package temporal

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// The trace of a request goes through Temporal to the activities of its operation.
func TestTraceReachesTheActivities(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	c, err := Dial(Config{Address: server.Address(t), Namespace: "t-" + schema.NewID(), Tracer: tracer})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.Installation.Setup(t.Context()))
	operationWorker(t, c, succeeds)

	ctx, request := tracer.Start(t.Context(), "request")
	in := drainOf("gpu-17")
	_, err = c.Operations.Submit(ctx, in)
	require.NoError(t, err)
	require.NoError(t, c.NodeTasks.SignalAgent(ctx, workflowID(in), lifecycle.AgentEvent{}))
	require.NoError(t, c.sdk.GetWorkflow(ctx, workflowID(in), "").Get(ctx, nil))
	request.End()

	plan, _ := lifecycle.PlanOf(in.Action, in.Options)
	names := map[string]bool{}
	for _, s := range spans.Ended() {
		if s.SpanContext().TraceID() == request.SpanContext().TraceID() {
			names[s.Name()] = true
		}
	}
	require.Contains(t, names, "RunActivity:claim", "%v", names)
	require.Contains(t, names, "StartActivity:claim", "%v", names)
	require.Contains(t, names, "RunWorkflow:"+plan.Workflow, "%v", names)
}

// An activity that waits for a node is no failed span.
func TestPendingActivityIsNoFailure(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	for _, err := range []error{activity.ErrResultPending, errors.New("broken")} {
		s := startSpan(t.Context(), tracer, "RunActivity")
		s.RecordError(err)
		s.SetStatus(codes.Error, err.Error())
		s.End()
	}
	pending, broken := spans.Ended()[0], spans.Ended()[1]
	require.Equal(t, codes.Unset, pending.Status().Code)
	require.Empty(t, pending.Events())
	require.Equal(t, codes.Error, broken.Status().Code)
	require.Len(t, broken.Events(), 1)
}
