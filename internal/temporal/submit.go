package temporal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// submitBudget bounds the early answer: the claim's local activity has 5 s.
const submitBudget = 20 * time.Second

// Submit starts the action's workflow under its workflow ID and returns
// its early answer: the accepted operation, or the refusal as *schema.Error
// (KindNodeInUse, KindInvalidRequest, KindNotFound, KindOperationInProgress
// naming the operation that holds the node). The same operation id again
// attaches to its own run and gets the first answer. KindServiceUnavailable
// with reason no_worker means that Temporal took the operation and will run it
// when a worker is up.
func (c *Client) Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	workflowType, ok := lifecycle.WorkflowType(in.Action)
	if !ok {
		return lifecycle.Operation{}, schema.Errorf(schema.KindInvalidRequest, "%s does not run as a workflow", in.Action)
	}
	ctx, cancel := context.WithTimeout(ctx, submitBudget)
	defer cancel()
	start := c.sdk.NewWithStartWorkflowOperation(startOptions(in), workflowType, in)
	ask := client.UpdateWorkflowOptions{
		UpdateID: in.OperationID, UpdateName: lifecycle.UpdateSubmit, WaitForStage: client.WorkflowUpdateStageCompleted,
	}
	handle, err := c.sdk.UpdateWithStartWorkflow(ctx, client.UpdateWithStartWorkflowOptions{
		StartWorkflowOperation: start, UpdateOptions: ask,
	})
	var op lifecycle.Operation
	if err == nil {
		err = handle.Get(ctx, &op)
	}
	if dropped(err) {
		// The run is started; only its answer was lost.
		ask.WorkflowID = lifecycle.WorkflowID(in.Action, in.NodeID)
		if err = c.update(ctx, ask, &op); errors.Is(err, errEnded) {
			var st lifecycle.OperationStatus
			st, err = c.Status(ctx, ask.WorkflowID, "")
			op = st.Operation
		}
	}
	if err != nil {
		return lifecycle.Operation{}, c.submitError(ctx, in, err)
	}
	return op, nil
}

func startOptions(in lifecycle.OperationInput) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID:                       lifecycle.WorkflowID(in.Action, in.NodeID),
		TaskQueue:                lifecycle.TaskQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowIDReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		TypedSearchAttributes:    startAttributes(in),
		StaticSummary:            summary(in),
		StaticDetails:            details(in),
	}
}

// startAttributes sets what is constant: at the start it costs no action.
func startAttributes(in lifecycle.OperationInput) temporal.SearchAttributes {
	updates := []temporal.SearchAttributeUpdate{
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrNodeID).ValueSet(in.NodeID),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrOperationID).ValueSet(in.OperationID),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(lifecycle.AttentionNone)),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(lifecycle.Phases(in.Action, in.Options)[0].Name),
	}
	for name, value := range map[string]string{
		lifecycle.AttrHost: in.Host, lifecycle.AttrRequester: in.Actor,
		lifecycle.AttrProvider: in.Provider, lifecycle.AttrRegion: in.Region,
	} {
		if value != "" {
			updates = append(updates, temporal.NewSearchAttributeKeyKeyword(name).ValueSet(value))
		}
	}
	return temporal.NewSearchAttributes(updates...)
}

// summary is the row's text in the Web UI, for example "drain gpu-17 for alice:
// RMA-4411".
func summary(in lifecycle.OperationInput) string {
	host := in.Host
	if host == "" {
		host = in.NodeID
	}
	s := fmt.Sprintf("%s %s for %s", in.Action, host, in.Actor)
	if in.Reason != "" {
		s += ": " + in.Reason
	}
	return shorten(s, 200)
}

// shorten keeps the first n runes, since the server bounds what it stores.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

func details(in lifecycle.OperationInput) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Operation `%s` on node `%s`, correlation id `%s`.\n\n", in.OperationID, in.NodeID, in.CorrelationID)
	fmt.Fprintf(&b, "Follow it: `%s`\n\n", lifecycle.OpCommand("watch", in.Action, in.NodeID))
	fmt.Fprintf(&b, "Decide: `%s --reason TEXT`\n", lifecycle.OpCommand("retry|skip|cancel|force|extend", in.Action, in.NodeID))
	return b.String()
}

func (c *Client) submitError(ctx context.Context, in lifecycle.OperationInput, err error) error {
	if temporal.IsWorkflowExecutionAlreadyStartedError(err) {
		return c.inProgress(ctx, in, err)
	}
	if _, ok := errors.AsType[*client.WorkflowUpdateServiceTimeoutOrCanceledError](err); ok && c.running(ctx, in) {
		return schema.NewError(schema.KindServiceUnavailable,
			"Temporal at %s took operation %s, but no worker answered within %s; it runs as soon as a worker is up",
			c.address, in.OperationID, submitBudget).
			WithReason("no_worker").WithNext(lifecycle.OpCommand("watch", in.Action, in.NodeID))
	}
	return c.interpret(err, fmt.Sprintf("starting %s", in.Action))
}

// running reports whether the action's workflow runs, on a context of its own
// since the caller's has just ended.
func (c *Client) running(ctx context.Context, in lifecycle.OperationInput) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, lifecycle.WorkflowID(in.Action, in.NodeID), "")
	return err == nil && d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
}

// inProgress names the operation that is in the way: the one that holds the
// node, or the reissue before this one.
func (c *Client) inProgress(ctx context.Context, in lifecycle.OperationInput, cause error) error {
	holder := "another operation"
	runID := ""
	if started, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](cause); ok {
		runID = started.RunId
	}
	if d, err := c.sdk.DescribeWorkflowExecution(ctx, lifecycle.WorkflowID(in.Action, in.NodeID), runID); err == nil {
		info := d.GetWorkflowExecutionInfo()
		holder = fmt.Sprintf("%s (operation %s, run %s, since %s)",
			lifecycle.ActionOfWorkflow(info.GetType().GetName()), keyword(info.GetSearchAttributes(), lifecycle.AttrOperationID),
			info.GetExecution().GetRunId(), info.GetStartTime().AsTime().UTC().Format(time.RFC3339))
	}
	return schema.NewError(schema.KindOperationInProgress, "cannot %s: %s is in progress on this node", in.Action, holder).
		WithNext(lifecycle.OpCommand("watch", in.Action, in.NodeID))
}

// refusal turns a workflow's typed failure back into the error it was, or
// returns nil when err is none.
func refusal(err error) *schema.Error {
	app, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok || !known(schema.Kind(app.Type())) {
		return nil
	}
	e := &schema.Error{Kind: schema.Kind(app.Type()), Message: app.Message()}
	var info schema.ErrorInfo
	if app.HasDetails() && app.Details(&info) == nil {
		e.Reason, e.Next = info.Reason, info.Next
	}
	return e
}

func known(k schema.Kind) bool { return k.Info().Kind == k }
