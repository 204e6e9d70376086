package temporal

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	sdk "go.temporal.io/sdk/temporal"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// unusedAddress is an address on which no server listens.
const unusedAddress = "127.0.0.1:1"

func dialUnusedAddress(t *testing.T) *Client {
	t.Helper()
	c, err := Dial(Config{Address: unusedAddress})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestTemporalUnavailable(t *testing.T) {
	t.Parallel()
	c := dialUnusedAddress(t)
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: "gpu-17", Action: lifecycle.ActionDrain}
	calls := map[string]func() error{
		"submit": func() error { _, err := c.Operations.Submit(t.Context(), in); return err },
		"status": func() error { _, err := c.Operations.Status(t.Context(), "node:x", ""); return err },
		"resolve": func() error {
			_, err := c.Operations.Resolve(t.Context(), "node:x", lifecycle.ResolveRequest{})
			return err
		},
		"parked": func() error { _, _, err := c.Operations.Parked(t.Context()); return err },
		"find":   func() error { _, err := c.Operations.FindNode(t.Context(), "h"); return err },
		"complete": func() error {
			return c.NodeTasks.CompleteTask(t.Context(), task.Owner{WorkflowID: "w", ActivityID: "a"}, task.Reference{})
		},
		"signal": func() error { return c.NodeTasks.SignalAgent(t.Context(), "node:x", lifecycle.AgentEvent{}) },
		"heartbeat": func() error {
			_, err := c.NodeTasks.RecordHeartbeat(t.Context(), task.Owner{WorkflowID: "w", ActivityID: "a"}, nodeapi.TaskHeartbeat{})
			return err
		},
		"health": func() error { return c.Healthy(t.Context()) },
		"setup":  func() error { return c.Installation.Setup(t.Context()) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := call()
			require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "%v", err)
			require.ErrorContains(t, err, unusedAddress)
			require.NotEmpty(t, schema.AsError(err).Next)
		})
	}
}

func TestFaultOfTemporal(t *testing.T) {
	t.Parallel()
	faults := dialUnusedAddress(t).Faults(t.Context())
	require.Len(t, faults, 1)
	require.Equal(t, []string{"temporal", string(schema.KindServiceUnavailable)}, []string{faults[0].Component, faults[0].Reason})
	require.Contains(t, faults[0].Message, unusedAddress)
	require.NotEmpty(t, faults[0].Next)
}

func TestSubmitRefusesTransitions(t *testing.T) {
	t.Parallel()
	_, err := dialUnusedAddress(t).Operations.Submit(t.Context(), lifecycle.OperationInput{Action: lifecycle.ActionHeartbeatLost})
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
}

func TestInterpret(t *testing.T) {
	t.Parallel()
	c := dialUnusedAddress(t)
	typed := sdk.NewApplicationErrorWithOptions("it holds work", string(schema.KindNodeInUse), sdk.ApplicationErrorOptions{
		NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: "busy", Next: "drain it"}},
	})
	cases := map[string]struct {
		err    error
		kind   schema.Kind
		reason string
	}{
		"a refusal keeps kind, reason and next": {typed, schema.KindNodeInUse, "busy"},
		"a foreign type is internal":            {sdk.NewApplicationError("x", "theirs"), schema.KindInternal, ""},
		"a missing namespace":                   {serviceerror.NewNamespaceNotFound("gpuaas"), schema.KindServiceUnavailable, "namespace_missing"},
		"not found":                             {serviceerror.NewNotFound("x"), schema.KindNotFound, ""},
		"a deadline":                            {context.DeadlineExceeded, schema.KindServiceUnavailable, "temporal_unreachable"},
		"no Temporal":                           {serviceerror.NewUnimplemented("x"), schema.KindServiceUnavailable, "temporal_unimplemented"},
		"no permission":                         {serviceerror.NewPermissionDenied("x", ""), schema.KindServiceUnavailable, "temporal_forbidden"},
		"no credential":                         {status.Error(codes.Unauthenticated, "x"), schema.KindServiceUnavailable, "temporal_unauthenticated"},
		"too many calls":                        {serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT, "x"), schema.KindServiceUnavailable, "temporal_throttled"},
		"the rest":                              {errors.New("x"), schema.KindInternal, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := schema.AsError(c.interpret(tc.err, "trying"))
			require.Equal(t, tc.kind, e.Kind)
			require.Equal(t, tc.reason, e.Reason)
			if e.Kind == schema.KindServiceUnavailable {
				require.NotEmpty(t, e.Next)
			}
		})
	}
	require.NoError(t, c.interpret(nil, "trying"))
	require.Equal(t, "no_worker", schema.AsError(queryError(c.Operations.connection, serviceerror.NewFailedPrecondition("no poller"), "w")).Reason)
}

func TestLateResult(t *testing.T) {
	t.Parallel()
	for status, want := range map[enumspb.WorkflowExecutionStatus]bool{
		enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING: true, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED: true,
		enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED: true, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED: false,
		enumspb.WORKFLOW_EXECUTION_STATUS_FAILED: false, enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: false,
	} {
		require.Equal(t, want, continuedWithout(status), status)
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	in := lifecycle.OperationInput{Action: lifecycle.ActionDrain, NodeID: "id", Host: "gpu-17", Actor: "alice", Reason: "RMA-4411"}
	require.Equal(t, "drain gpu-17 for alice: RMA-4411", summary(in))
	in.Reason = strings.Repeat("ü", 500)
	require.LessOrEqual(t, len([]rune(summary(in))), 200)
	require.Equal(t, "http://localhost:8233/namespaces/gpuaas/workflows/node:x/r/timeline", dialUnusedAddress(t).WebURL("node:x", "r"))
}
