package temporal

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

func (f *frontend) ExecuteMultiOperation(_ context.Context, r *workflowservice.ExecuteMultiOperationRequest) (*workflowservice.ExecuteMultiOperationResponse, error) {
	f.note(r)
	if f.drops {
		return nil, serviceerror.ToStatus(serviceerror.NewWorkflowNotReady("closing")).Err()
	}
	return nil, serviceerror.ToStatus(serviceerror.NewInvalidArgument("not here")).Err()
}

func (f *frontend) UpdateWorkflowExecution(_ context.Context, r *workflowservice.UpdateWorkflowExecutionRequest) (*workflowservice.UpdateWorkflowExecutionResponse, error) {
	f.note(r)
	switch {
	case f.ends && len(f.requests) == 1:
		return nil, serviceerror.ToStatus(serviceerror.NewWorkflowNotReady("closing")).Err()
	case f.ends:
		return nil, serviceerror.ToStatus(serviceerror.NewNotFound("closed")).Err()
	}
	return nil, serviceerror.ToStatus(serviceerror.NewInvalidArgument("not here")).Err()
}

func (f *frontend) QueryWorkflow(_ context.Context, r *workflowservice.QueryWorkflowRequest) (*workflowservice.QueryWorkflowResponse, error) {
	f.note(r)
	return nil, serviceerror.ToStatus(serviceerror.NewInvalidArgument("not here")).Err()
}

func (f *frontend) DescribeWorkflowExecution(context.Context, *workflowservice.DescribeWorkflowExecutionRequest) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	operation, err := converter.GetDefaultDataConverter().ToPayload(f.newest)
	return &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{
		Execution:        &commonpb.WorkflowExecution{RunId: "run-of-" + f.newest},
		SearchAttributes: &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{lifecycle.AttrOperationID: operation}},
	}}, err
}

func (*frontend) ListWorkflowExecutions(context.Context, *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	return &workflowservice.ListWorkflowExecutionsResponse{}, nil
}

// TestDroppedSubmitIsRepeated: the repeated update goes to the run that the submit
// started.
func TestDroppedSubmitIsRepeated(t *testing.T) {
	t.Parallel()
	for action, want := range map[lifecycle.Action]string{lifecycle.ActionDrain: "node:gpu-17:n", lifecycle.ActionReissueEnrollment: "node:gpu-17:n:reissue"} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			c, f := dialFrontend(t)
			f.drops, f.newest = true, "op"
			_, err := c.Operations.Submit(t.Context(), lifecycle.OperationInput{OperationID: "op", NodeID: "n", Host: "gpu-17", Action: action, Actor: "alice"})
			require.Error(t, err)
			require.Len(t, f.requests, 2)
			again, ok := f.requests[1].(*workflowservice.UpdateWorkflowExecutionRequest)
			require.True(t, ok)
			require.Equal(t, want, again.GetWorkflowExecution().GetWorkflowId())
			require.Equal(t, "run-of-op", again.GetWorkflowExecution().GetRunId())
		})
	}
}

// TestDroppedSubmitAsksNoOther: the newest run belongs to another operation, which does
// not receive the update.
func TestDroppedSubmitAsksNoOther(t *testing.T) {
	t.Parallel()
	c, f := dialFrontend(t)
	f.drops, f.newest = true, "other"
	_, err := c.Operations.Submit(t.Context(), lifecycle.OperationInput{OperationID: "op", NodeID: "n", Host: "gpu-17", Action: lifecycle.ActionDrain, Actor: "alice"})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.Equal(t, "response_lost", schema.AsError(err).Reason)
	require.Contains(t, schema.AsError(err).Next, "op")
	require.Len(t, f.requests, 1)
}

// TestDecisionReadsItsOwnRun: after the run that took a decision has closed, the status of a
// newer operation is not the answer.
func TestDecisionReadsItsOwnRun(t *testing.T) {
	t.Parallel()
	resolve := func(newest string) (*frontend, error) {
		c, f := dialFrontend(t)
		f.ends, f.newest = true, newest
		_, err := c.Operations.Resolve(t.Context(), "node:gpu-17:n", lifecycle.ResolveRequest{OperationID: "op", Decision: lifecycle.DecisionCancel})
		return f, err
	}
	f, err := resolve("other")
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
	require.Len(t, f.requests, 2, "no query")
	f, err = resolve("op")
	require.Error(t, err)
	require.Len(t, f.requests, 3)
	query, ok := f.requests[2].(*workflowservice.QueryWorkflowRequest)
	require.True(t, ok)
	require.Equal(t, "run-of-op", query.GetExecution().GetRunId())
}

// TestSubmitWorkflowID: every action runs under the node's workflow ID, except
// for the reissue.
func TestSubmitWorkflowID(t *testing.T) {
	t.Parallel()
	for _, m := range lifecycle.Operations() {
		t.Run(string(m.Action), func(t *testing.T) {
			t.Parallel()
			c, f := dialFrontend(t)
			in := lifecycle.OperationInput{OperationID: "op", NodeID: "n", Host: "gpu-17", Action: m.Action, Actor: "alice"}
			_, err := c.Operations.Submit(t.Context(), in)
			require.Error(t, err)
			require.Len(t, f.requests, 1)
			sent, ok := f.requests[0].(*workflowservice.ExecuteMultiOperationRequest)
			require.True(t, ok)
			want := "node:gpu-17:n"
			if m.Action == lifecycle.ActionReissueEnrollment {
				want = "node:gpu-17:n:reissue"
				require.Contains(t, details(in), "gpuaas op watch gpu-17 --reissue")
			}
			require.Equal(t, want, sent.GetOperations()[0].GetStartWorkflow().GetWorkflowId())
			require.Equal(t, want, sent.GetOperations()[1].GetUpdateWorkflow().GetWorkflowExecution().GetWorkflowId())
		})
	}
}

// TestSummaryHasNoMarkup: the Web UI renders the summary as Markdown, so an operator's
// words are in a code span unless they are plain.
func TestSummaryHasNoMarkup(t *testing.T) {
	t.Parallel()
	in := lifecycle.OperationInput{Action: lifecycle.ActionDrain, Host: "gpu-17", Actor: "alice", Reason: "RMA-4411: fan 3"}
	require.Equal(t, "drain gpu-17 for alice: RMA-4411: fan 3", summary(in))
	for _, markup := range []string{"[x](http://evil)", "**now**", "<img src=x>", "see http://evil", "a`b*c*`", "two\n# lines"} {
		in.Actor, in.Reason = markup, markup
		quoted := text.Quote(markup, maxDetail)
		require.Equal(t, "drain gpu-17 for "+quoted+": "+quoted, summary(in))
		require.Contains(t, details(in), "Requested by "+quoted+": "+quoted)
	}
	in.Reason = strings.Repeat("ä", 500)
	require.LessOrEqual(t, len(summary(in)), 400)
}
