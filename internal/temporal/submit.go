package temporal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// submitBudget bounds the wait for the claim, whose local activity has 5 s.
const submitBudget = 20 * time.Second

// lookupBudget bounds the search for an older run: a cluster admits few searches a second,
// and a rejection must not wait for them.
const lookupBudget = 2 * time.Second

// Submit starts the action's workflow under its workflow ID, which needs the
// input's host. It returns the accepted operation, or the rejection as
// *schema.Error: KindNodeInUse, KindInvalidRequest, KindNotFound, or
// KindOperationInProgress naming the operation that holds the node. A repeated
// call with the same operation ID attaches to its own run and returns the first
// response.
// KindServiceUnavailable with reason no_worker or database_unavailable means that
// Temporal accepted the operation and runs it when a worker or the database is
// available within the input's StartWithin, lifecycle.StartWithin by default; with reason
// response_lost, that the operation ran.
func (c Operations) Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	plan, ok := lifecycle.PlanOf(in.Action, in.Options)
	switch {
	case !ok || plan.Workflow == "":
		return lifecycle.Operation{}, schema.NewError(schema.KindInvalidRequest, "%s does not run as a workflow", in.Action)
	case in.Host == "":
		return lifecycle.Operation{}, schema.NewError(schema.KindInvalidRequest, "cannot %s node %s: its host name is not known", in.Action, in.NodeID)
	}
	if err := c.scanner.Check(in); err != nil {
		return lifecycle.Operation{}, err
	}
	if in.StartWithinSeconds == 0 {
		in.StartWithinSeconds = int64(lifecycle.StartWithin / time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, submitBudget)
	defer cancel()
	op, err := c.start(ctx, in, plan)
	if mine, attachErr := c.attach(ctx, in, err, &op); mine {
		err = attachErr
	} else if c.awaitEnding(ctx, in, err) {
		op, err = c.start(ctx, in, plan)
	}
	if err != nil {
		return lifecycle.Operation{}, c.submitError(ctx, in, err)
	}
	return op, nil
}

// start starts the workflow and waits for its response.
func (c Operations) start(ctx context.Context, in lifecycle.OperationInput, plan lifecycle.Plan) (op lifecycle.Operation, err error) {
	handle, err := c.sdk.UpdateWithStartWorkflow(ctx, client.UpdateWithStartWorkflowOptions{
		StartWorkflowOperation: c.sdk.NewWithStartWorkflowOperation(startOptions(in, plan), plan.Workflow, in),
		UpdateOptions:          submitUpdate(in),
	})
	if err == nil {
		err = handle.Get(ctx, &op)
	}
	return op, err
}

func submitUpdate(in lifecycle.OperationInput) client.UpdateWorkflowOptions {
	return client.UpdateWorkflowOptions{
		UpdateID: in.OperationID, UpdateName: lifecycle.UpdateSubmit, WaitForStage: client.WorkflowUpdateStageCompleted,
	}
}

// attach reads the response of the operation's own run after a start that failed although
// the run exists. WorkflowNotReady means that the run closed while it handled the
// update. WorkflowExecutionAlreadyStarted answers a repeat whose first update Temporal
// has lost: until a worker accepts an update, only the server's memory has it. mine is
// false if no run of this operation is found.
func (c Operations) attach(ctx context.Context, in lifecycle.OperationInput, failure error, op *lifecycle.Operation) (mine bool, err error) {
	if !is[*serviceerror.WorkflowNotReady](failure) && !is[*serviceerror.WorkflowExecutionAlreadyStarted](failure) {
		return false, nil
	}
	run, err := c.runOf(ctx, workflowID(in), in.OperationID)
	if err != nil || run == "" {
		return false, err
	}
	ask := submitUpdate(in)
	ask.WorkflowID, ask.RunID = workflowID(in), run
	err = c.update(ctx, ask, op)
	if errors.Is(err, errEnded) || is[*serviceerror.NotFound](err) {
		var st lifecycle.OperationStatus
		st, err = c.Status(ctx, ask.WorkflowID, run)
		*op = st.Operation
	}
	return true, err
}

// runOf returns the newest run of the operation, "" if there is none. The newest run of
// the workflow may be another operation's.
func (c Operations) runOf(ctx context.Context, workflowID, operationID string) (string, error) {
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, "")
	if err != nil {
		return "", err
	}
	newest := d.GetWorkflowExecutionInfo()
	if operationOf(newest) == operationID {
		return newest.GetExecution().GetRunId(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupBudget)
	defer cancel()
	older, err := c.list(ctx, fmt.Sprintf("WorkflowId = %q AND %s = %q", workflowID, lifecycle.AttrOperationID, operationID), 1)
	if err != nil || len(older) == 0 {
		return "", err
	}
	return older[0].GetExecution().GetRunId(), nil
}

// awaitEnding reports whether a start was rejected because of an operation that has ended
// but whose run is still open, and waits until the run closes. The end is recorded, and
// thus visible to clients, a moment before the run closes.
func (c Operations) awaitEnding(ctx context.Context, in lifecycle.OperationInput, rejection error) bool {
	started, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](rejection)
	if !ok {
		return false
	}
	asking, cancel := context.WithTimeout(ctx, leftoverBudget) // without a worker there is no answer
	defer cancel()
	st, err := c.Status(asking, workflowID(in), started.RunId)
	if err != nil || st.Operation.EndedAt == nil {
		return false
	}
	return closes(ctx, c, workflowID(in), started.RunId)
}

// closes waits for a run and reports whether it closed, in whatever way, before ctx ended.
func closes(ctx context.Context, c Operations, workflowID, runID string) bool {
	_, err := c.Result(ctx, workflowID, runID)
	return err == nil || ctx.Err() == nil && !schema.KindOf(err).Info().Retry
}

func workflowID(in lifecycle.OperationInput) string {
	return lifecycle.WorkflowID(in.Action, in.Host, in.NodeID)
}

func startOptions(in lifecycle.OperationInput, plan lifecycle.Plan) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID:                       workflowID(in),
		TaskQueue:                lifecycle.TaskQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowIDReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		TypedSearchAttributes:    startAttributes(in, plan),
		StaticSummary:            summary(in),
		StaticDetails:            details(in),
	}
}

// startAttributes sets the constant search attributes: setting them at the start
// adds no event.
func startAttributes(in lifecycle.OperationInput, plan lifecycle.Plan) temporal.SearchAttributes {
	updates := []temporal.SearchAttributeUpdate{
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrNodeID).ValueSet(in.NodeID),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrOperationID).ValueSet(in.OperationID),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(lifecycle.AttentionNone)),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(plan.Phases[0].Name),
		temporal.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt).ValueSet(time.Now().Add(plan.Phases[0].Budget)),
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

// summary is the first line of the run's page in the Web UI, for example "drain gpu-17 for
// alice: RMA-4411". The Web UI renders Markdown, so the words of an operator are quoted
// if they may have markup. Temporal bounds a summary to 400 bytes by default.
func summary(in lifecycle.OperationInput) string {
	s := fmt.Sprintf("%s %s for %s", in.Action, plain(in.Host, 64), plain(in.Actor, 40))
	if in.Reason != "" {
		s += ": " + plain(in.Reason, 80)
	}
	return s
}

// plain returns words without markup as they are, and others as a code span of at most
// limit characters.
func plain(s string, limit int) string {
	return text.Plain(s, limit, " ,:-")
}

// maxDetail is how many characters of an operator's text the details show.
const maxDetail = 300

// details is the fixed text on the run's page in the Web UI.
func details(in lifecycle.OperationInput) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Operation `%s` on node `%s`, correlation id %s.\n\n", in.OperationID, in.NodeID, text.Quote(in.CorrelationID, maxDetail))
	fmt.Fprintf(&b, "Requested by %s", text.Quote(in.Actor, maxDetail))
	if in.Reason != "" {
		fmt.Fprintf(&b, ": %s", text.Quote(in.Reason, maxDetail))
	}
	fmt.Fprintf(&b, ".\n\nFollow it: `%s`\n\n", lifecycle.OpCommand("watch", in.Action, in.Host))
	fmt.Fprintf(&b, "Options when it is parked: `%s`, or Current Details on this page.\n\n", lifecycle.OpCommand("show", in.Action, in.Host))
	fmt.Fprintf(&b, "To end it, use `%s`: it restores the node. Do not terminate the run: the operation is abandoned then, until you run `%s`.\n",
		lifecycle.DecisionCommand(lifecycle.DecisionCancel, in.Action, in.Host, in.OperationID), lifecycle.RehydrateCommand(in.Host))
	return b.String()
}

func (c Operations) submitError(ctx context.Context, in lifecycle.OperationInput, err error) error {
	if temporal.IsWorkflowExecutionAlreadyStartedError(err) {
		return c.inProgress(ctx, in, err)
	}
	if is[*serviceerror.WorkflowNotReady](err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "Temporal accepted operation %s, but its response was lost", in.OperationID).
			WithReason(lifecycle.ReasonResponseLost).WithNext(lifecycle.OpCommand("show", in.Action, in.Host) + " --operation " + in.OperationID)
	}
	if is[*client.WorkflowUpdateServiceTimeoutOrCanceledError](err) {
		if pending := c.pending(ctx, in); pending != nil {
			first := "start a gpuaas-worker"
			if pending.Reason == lifecycle.ReasonClaimPending {
				first = "repair the database"
			}
			return pending.WithNext(first + ", then run: " + lifecycle.OpCommand("watch", in.Action, in.Host) + " --operation " + in.OperationID)
		}
	}
	return c.interpret(err, fmt.Sprintf("starting %s", in.Action))
}

// pending says why a running operation has not responded, nil if it does not run. It uses
// a context of its own, because the caller's has just ended.
func (c Operations) pending(ctx context.Context, in lifecycle.OperationInput) *schema.Error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID(in), "")
	info := d.GetWorkflowExecutionInfo()
	if err != nil || closed(info.GetStatus()) || operationOf(info) != in.OperationID {
		return nil
	}
	// Only a worker schedules an activity. At this point it is the claim, which the
	// database did not answer within a workflow task.
	if waiting := d.GetPendingActivities(); len(waiting) > 0 {
		return schema.NewError(schema.KindServiceUnavailable,
			"Temporal at %s accepted operation %s, but the database did not respond to the claim of its node within %s (%s); the worker retries the claim until %s",
			c.address, in.OperationID, submitBudget, cmp.Or(waiting[0].GetLastFailure().GetMessage(), "no failure is reported yet"), startBy(in, info)).
			WithReason(lifecycle.ReasonClaimPending)
	}
	return schema.NewError(schema.KindServiceUnavailable,
		"Temporal at %s accepted operation %s, but no worker responded within %s; it runs if a worker is up before %s",
		c.address, in.OperationID, submitBudget, startBy(in, info)).WithReason(lifecycle.ReasonNoWorker)
}

// startBy is when the operation expires unless it has claimed its node.
func startBy(in lifecycle.OperationInput, info *workflowpb.WorkflowExecutionInfo) string {
	return info.GetStartTime().AsTime().Add(in.StartWithin()).UTC().Format(time.RFC3339)
}

// inProgress names the conflicting operation: the one that holds the node, or the
// previous reissue.
func (c Operations) inProgress(ctx context.Context, in lifecycle.OperationInput, cause error) error {
	holder := "another operation"
	runID := ""
	if started, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](cause); ok {
		runID = started.RunId
	}
	if d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID(in), runID); err == nil {
		info := d.GetWorkflowExecutionInfo()
		plan, _ := lifecycle.PlanOfWorkflow(info.GetType().GetName())
		holder = fmt.Sprintf("%s (operation %s, run %s, since %s)",
			plan.Action, operationOf(info), info.GetExecution().GetRunId(), info.GetStartTime().AsTime().UTC().Format(time.RFC3339))
	}
	return schema.NewError(schema.KindOperationInProgress, "cannot %s: %s is in progress on this node", in.Action, holder).
		WithReason(lifecycle.ReasonRunOpen).WithNext(lifecycle.OpCommand("watch", in.Action, in.Host))
}
