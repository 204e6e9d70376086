package temporal

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// What the flags and refusals of a real server are.

var server temporaltest.Shared

func TestMain(m *testing.M) { server.Run(m) }

const step = "workload.drain"

// bench is a namespace of its own with a worker whose one workflow waits for one
// task of a node.
type bench struct {
	*Client
	t   *testing.T
	run client.WorkflowRun
	// worker runs the workflow and its activity, which try ends.
	worker worker.Worker
	try    func(attempt int32) error
}

// connect returns a client to a namespace of its own, set up.
func connect(t *testing.T) *Client {
	t.Helper()
	t.Parallel()
	return connectBench(t)
}

// connectBench is connect for a benchmark.
func connectBench(t testing.TB) *Client {
	t.Helper()
	c, err := Dial(Config{Address: server.Address(t), Namespace: "t-" + schema.NewID()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.Installation.Setup(t.Context()))
	return c
}

// waitingTask has the workflow wait for its activity, with a heartbeat timeout.
func waitingTask(t *testing.T, interval time.Duration) *bench {
	t.Helper()
	b := newTask(t, interval, 100*time.Millisecond, nil)
	b.until(func(a *workflowpb.PendingActivityInfo) bool {
		return a.GetState() == enumspb.PENDING_ACTIVITY_STATE_STARTED
	})
	return b
}

// newTask starts the workflow. try ends a try of its activity; nil leaves it open.
func newTask(t *testing.T, interval, backoff time.Duration, try func(attempt int32) error) *bench {
	t.Helper()
	b := &bench{Client: connect(t), t: t, try: try}
	w := worker.New(b.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) (task.Reference, error) {
		var r task.Reference
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			ActivityID: step, StartToCloseTimeout: time.Hour, HeartbeatTimeout: interval, WaitForCancellation: true,
			RetryPolicy: &sdk.RetryPolicy{InitialInterval: backoff, BackoffCoefficient: 1},
		}), "wait").Get(ctx, &r)
		workflow.GetSignalChannel(ctx, lifecycle.SignalAgent).Receive(ctx, nil)
		return r, err
	}, workflow.RegisterOptions{Name: "waits"})
	w.RegisterActivityWithOptions(func(ctx context.Context) (task.Reference, error) {
		if b.try != nil {
			return task.Reference{}, b.try(activity.GetInfo(ctx).Attempt)
		}
		return task.Reference{}, activity.ErrResultPending
	},
		activity.RegisterOptions{Name: "wait"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	b.worker = w
	var err error
	b.run, err = b.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: "node:" + schema.NewID()}, "waits")
	require.NoError(t, err)
	return b
}

func (b *bench) owner() task.Owner {
	return task.Owner{WorkflowID: b.run.GetID(), RunID: b.run.GetRunID(), ActivityID: step}
}

// until waits for the pending activity of the newest run to be so.
func (b *bench) until(is func(*workflowpb.PendingActivityInfo) bool) {
	b.t.Helper()
	harness.Eventually(b.t, "the pending activity", func() bool {
		d, err := b.sdk.DescribeWorkflowExecution(b.t.Context(), b.run.GetID(), "")
		return err == nil && len(d.GetPendingActivities()) == 1 && is(d.GetPendingActivities()[0])
	})
}

func (b *bench) heartbeat() nodeapi.ActivityState {
	b.t.Helper()
	a, err := b.NodeTasks.RecordHeartbeat(b.t.Context(), b.owner(), nodeapi.TaskHeartbeat{Status: task.Running, Message: "at it", Epoch: 1})
	require.NoError(b.t, err)
	return a
}

// end signals the workflow, which waits for the signal after its activity.
func (b *bench) end() {
	b.t.Helper()
	require.NoError(b.t, b.NodeTasks.SignalAgent(b.t.Context(), b.run.GetID(), lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned}))
}

func (b *bench) succeed() {
	b.t.Helper()
	require.NoError(b.t, b.NodeTasks.CompleteTask(b.t.Context(), b.owner(), task.Reference{TaskID: "done", Status: task.Succeeded}))
	requireGone(b.t, b.NodeTasks.CompleteTask(b.t.Context(), b.owner(), task.Reference{Status: task.Failed}), schema.ReasonActivityClosed)
	require.Equal(b.t, nodeapi.ActivityState{}, b.heartbeat(), "the run continues without the activity")
	b.end()
	var r task.Reference
	require.NoError(b.t, b.sdk.GetWorkflow(b.t.Context(), b.run.GetID(), "").Get(b.t.Context(), &r))
	require.Equal(b.t, "done", r.TaskID)
}

func (b *bench) execution() *commonpb.WorkflowExecution {
	return &commonpb.WorkflowExecution{WorkflowId: b.run.GetID(), RunId: b.run.GetRunID()}
}

func TestHeartbeatReportsPause(t *testing.T) {
	b := waitingTask(t, time.Minute)
	require.Equal(t, nodeapi.ActivityState{}, b.heartbeat())
	b.until(func(a *workflowpb.PendingActivityInfo) bool { return len(a.GetHeartbeatDetails().GetPayloads()) == 1 })
	_, err := b.sdk.WorkflowService().PauseActivity(t.Context(), &workflowservice.PauseActivityRequest{Namespace: b.namespace,
		Execution: b.execution(), Activity: &workflowservice.PauseActivityRequest_Id{Id: step}})
	require.NoError(t, err)
	require.Equal(t, nodeapi.ActivityState{Paused: true}, b.heartbeat())
	_, err = b.sdk.WorkflowService().UnpauseActivity(t.Context(), &workflowservice.UnpauseActivityRequest{Namespace: b.namespace,
		Execution: b.execution(), Activity: &workflowservice.UnpauseActivityRequest_Id{Id: step}})
	require.NoError(t, err)
	require.Equal(t, nodeapi.ActivityState{}, b.heartbeat())
	b.succeed()
	require.Equal(t, nodeapi.ActivityState{Cancel: true}, b.heartbeat(), "the run is closed")
}

func TestHeartbeatReportsCancel(t *testing.T) {
	b := waitingTask(t, time.Minute)
	require.NoError(t, b.sdk.CancelWorkflow(t.Context(), b.run.GetID(), ""))
	harness.Eventually(t, "the cancel", func() bool { return b.heartbeat().Cancel })
	require.NoError(t, b.NodeTasks.CompleteTask(t.Context(), b.owner(), task.Reference{Status: task.Canceled}))
	b.end()
	require.NoError(t, b.run.Get(t.Context(), nil), "the workflow reads that the task was canceled")
}

// A terminated run sends no notification; the agent learns of it from the response
// to a heartbeat.
func TestHeartbeatReportsTermination(t *testing.T) {
	b := waitingTask(t, time.Minute)
	require.NoError(t, b.sdk.TerminateWorkflow(t.Context(), b.run.GetID(), "", "by hand"))
	require.Equal(t, nodeapi.ActivityState{Cancel: true}, b.heartbeat())
	o := b.owner()
	o.WorkflowID, o.RunID = "node:"+schema.NewID(), schema.NewID()
	a, err := b.NodeTasks.RecordHeartbeat(t.Context(), o, nodeapi.TaskHeartbeat{})
	require.NoError(t, err)
	require.Equal(t, nodeapi.ActivityState{}, a, "an unknown workflow is no proof that the operation ended")
	requireGone(t, b.NodeTasks.CompleteTask(t.Context(), b.owner(), task.Reference{Status: task.Succeeded}), "")
}

// A later operation of the same node waits for a step of the same name: a result
// of the older one never reaches it.
func TestResultStaysWithItsOperation(t *testing.T) {
	b := waitingTask(t, time.Minute)
	older := b.owner()
	require.NoError(t, b.sdk.TerminateWorkflow(t.Context(), b.run.GetID(), "", "by hand"))
	var err error
	b.run, err = b.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: older.WorkflowID}, "waits")
	require.NoError(t, err)
	b.until(func(a *workflowpb.PendingActivityInfo) bool {
		return a.GetState() == enumspb.PENDING_ACTIVITY_STATE_STARTED
	})
	requireGone(t, b.NodeTasks.CompleteTask(t.Context(), older, task.Reference{TaskID: "older"}), "")
	answer, err := b.NodeTasks.RecordHeartbeat(t.Context(), older, nodeapi.TaskHeartbeat{Status: task.Running})
	require.NoError(t, err)
	require.Equal(t, nodeapi.ActivityState{Cancel: true}, answer)
	b.until(func(a *workflowpb.PendingActivityInfo) bool { return len(a.GetHeartbeatDetails().GetPayloads()) == 0 })
	b.succeed()
}

func requireGone(t *testing.T, err error, reason string) {
	t.Helper()
	require.Equal(t, schema.KindNotFound, schema.KindOf(err), "%v", err)
	require.Equal(t, reason, schema.AsError(err).Reason)
}

// A reset gives the workflow a new run: heartbeats and the result of the task
// that the old run dispatched reach it.
func TestHeartbeatAndResultFollowReset(t *testing.T) {
	b := waitingTask(t, time.Minute)
	temporaltest.Reset(t, b.sdk, b.namespace, b.run.GetID(), b.run.GetRunID(), 0)
	b.until(func(a *workflowpb.PendingActivityInfo) bool {
		return a.GetState() == enumspb.PENDING_ACTIVITY_STATE_STARTED && len(a.GetHeartbeatDetails().GetPayloads()) == 0
	})
	require.Equal(t, nodeapi.ActivityState{}, b.heartbeat())
	b.until(func(a *workflowpb.PendingActivityInfo) bool { return len(a.GetHeartbeatDetails().GetPayloads()) == 1 })
	b.succeed()
	requireGone(t, b.NodeTasks.CompleteTask(t.Context(), b.owner(), task.Reference{Status: task.Succeeded}), schema.ReasonActivityClosed)
}

func TestSilentTaskIsRetried(t *testing.T) {
	b := waitingTask(t, time.Second)
	b.until(func(a *workflowpb.PendingActivityInfo) bool { return a.GetAttempt() >= 2 })
	b.heartbeat()
	b.succeed()
}

// TestResultOfAnActivityThatHasNotStarted: an activity between two tries, without a worker
// or paused is pending and not started. Temporal completes it, and fails or cancels it not:
// so a result of every status completes it.
func TestResultOfAnActivityThatHasNotStarted(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T) *bench{
		"between two tries": func(t *testing.T) *bench {
			t.Helper()
			b := newTask(t, time.Minute, time.Hour, func(int32) error { return errors.New("no database") })
			b.until(func(a *workflowpb.PendingActivityInfo) bool { return a.GetAttempt() == 2 })
			return b
		},
		"without a worker": func(t *testing.T) *bench {
			t.Helper()
			b := newTask(t, time.Minute, time.Second, func(int32) error { return errors.New("no database") })
			b.until(func(a *workflowpb.PendingActivityInfo) bool { return a.GetAttempt() >= 2 })
			b.worker.Stop()
			b.until(func(a *workflowpb.PendingActivityInfo) bool {
				return a.GetState() == enumspb.PENDING_ACTIVITY_STATE_SCHEDULED && time.Now().After(a.GetScheduledTime().AsTime())
			})
			return b
		},
		"paused": func(t *testing.T) *bench {
			t.Helper()
			b := newTask(t, time.Minute, time.Hour, func(int32) error { return errors.New("no database") })
			b.until(func(a *workflowpb.PendingActivityInfo) bool { return a.GetAttempt() == 2 })
			_, err := b.sdk.WorkflowService().PauseActivity(t.Context(), &workflowservice.PauseActivityRequest{Namespace: b.namespace,
				Execution: b.execution(), Activity: &workflowservice.PauseActivityRequest_Id{Id: step}})
			require.NoError(t, err)
			b.until(func(a *workflowpb.PendingActivityInfo) bool { return a.GetPaused() })
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := prepare(t)
			fail := b.sdk.CompleteActivityByIDWithOptions(t.Context(), client.CompleteActivityByIDOptions{Namespace: b.namespace,
				WorkflowID: b.owner().WorkflowID, RunID: b.owner().RunID, ActivityID: step, Err: errors.New("failed")})
			require.True(t, is[*serviceerror.NotFound](fail), "a failure is rejected as if the activity were unknown: %v", fail)
			require.NoError(t, b.NodeTasks.CompleteTask(t.Context(), b.owner(), task.Reference{TaskID: "failed", Status: task.Failed}))
			d, err := b.sdk.DescribeWorkflowExecution(t.Context(), b.run.GetID(), "")
			require.NoError(t, err)
			require.Empty(t, d.GetPendingActivities())
			requireGone(t, b.NodeTasks.CompleteTask(t.Context(), b.owner(), task.Reference{Status: task.Failed}), schema.ReasonActivityClosed)
		})
	}
}

func TestHeartbeatWithholdsSecret(t *testing.T) {
	b := waitingTask(t, time.Minute)
	token, _, _ := trust.NewToken()
	_, err := b.NodeTasks.RecordHeartbeat(t.Context(), b.owner(), nodeapi.TaskHeartbeat{Status: task.Running, Message: "claiming " + token})
	require.NoError(t, err)
	b.until(func(a *workflowpb.PendingActivityInfo) bool {
		details := fmt.Sprint(a.GetHeartbeatDetails())
		require.NotContains(t, details, token)
		return len(a.GetHeartbeatDetails().GetPayloads()) == 1
	})
}

func TestReclaimSchedule(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	becomes := func(reason string) (f wire.ControlPlaneFault) {
		harness.Eventually(t, "the fault is "+reason, func() bool {
			f = faultOf(c, lifecycle.ScheduleReclaim)
			return f.Reason == reason
		})
		return f
	}
	handle := c.sdk.ScheduleClient().GetHandle(ctx, lifecycle.ScheduleReclaim)
	require.NoError(t, handle.Pause(ctx, client.SchedulePauseOptions{Note: "maintenance"}))
	require.NoError(t, c.Installation.Setup(ctx), "again")
	h := becomes("paused") // a setup does not undo an operator's pause
	require.Contains(t, h.Message, "maintenance")
	require.NotEmpty(t, h.Next)
	d, err := handle.Describe(ctx)
	require.NoError(t, err)
	require.Equal(t, enumspb.SCHEDULE_OVERLAP_POLICY_SKIP, d.Schedule.Policy.Overlap)
	require.Equal(t, lifecycle.RoundInterval, d.Schedule.Policy.CatchupWindow)
	require.Equal(t, lifecycle.RoundInterval, d.Schedule.Spec.Intervals[0].Every)
	action, ok := d.Schedule.Action.(*client.ScheduleWorkflowAction)
	require.True(t, ok)
	require.Equal(t, lifecycle.Schedules()[0].RunTimeout, action.WorkflowRunTimeout)
	require.NotEmpty(t, action.StaticSummary)
	require.NoError(t, handle.Unpause(ctx, client.ScheduleUnpauseOptions{}))
	becomes("")

	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	fail := make(chan bool, 1)
	fail <- true
	w.RegisterWorkflowWithOptions(func(workflow.Context) error {
		select {
		case <-fail:
			return errors.New("broken")
		default:
			return nil
		}
	}, workflow.RegisterOptions{Name: lifecycle.WorkflowReclaim})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	for _, want := range []string{"failing", ""} {
		require.NoError(t, handle.Trigger(ctx, client.ScheduleTriggerOptions{Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL}))
		becomes(want)
	}

	require.NoError(t, handle.Delete(ctx))
	require.Equal(t, "gpuaas admin setup", becomes("absent").Next)
}

// TestSecretTypedIntoTheWebUI: the Web UI has no guard. A decision with a token is
// rejected and not recorded, and a run that was started with one does not stop.
func TestSecretTypedIntoTheWebUI(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	token, _, _ := trust.NewToken()
	webUI, err := client.DialContext(ctx, client.Options{HostPort: c.address, Namespace: c.namespace})
	require.NoError(t, err)
	t.Cleanup(webUI.Close)
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{Interceptors: []interceptor.WorkerInterceptor{CodedErrors(), c.UpdateGuard()}})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, in lifecycle.OperationInput) (string, error) {
		var decided lifecycle.ResolveRequest
		err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateResolve, func(ctx workflow.Context, r lifecycle.ResolveRequest) (string, error) {
			decided = r
			// The reason that the run was started with is in what the workflow task reports.
			return "taken", workflow.UpsertMemo(ctx, map[string]any{"decided": r.By})
		})
		if err != nil {
			return "", err
		}
		summary := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Hour, Summary: "drain: " + in.Reason})
		workflow.ExecuteActivity(summary, "absent")
		err = workflow.Await(ctx, func() bool { return decided.Reason != "" })
		return decided.Reason, err
	}, workflow.RegisterOptions{Name: "decides"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	run, err := webUI.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: "node:" + schema.NewID()}, "decides",
		lifecycle.OperationInput{Reason: "typed " + token})
	require.NoError(t, err)
	decide := func(reason string) error {
		h, err := webUI.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{WorkflowID: run.GetID(), UpdateName: lifecycle.UpdateResolve,
			WaitForStage: client.WorkflowUpdateStageCompleted, Args: []any{lifecycle.ResolveRequest{Reason: reason, By: "alice"}}})
		if err == nil {
			err = h.Get(ctx, nil)
		}
		return err
	}
	err = decide("because " + token)
	require.Equal(t, "secret_in_request", activities.Typed(err).Reason, "%v", err)
	require.NotContains(t, err.Error(), token)
	require.NoError(t, decide("the disk is gone"))
	var reason string
	require.NoError(t, run.Get(ctx, &reason))
	require.Equal(t, "the disk is gone", reason)
	for events := c.sdk.GetWorkflowHistory(ctx, run.GetID(), run.GetRunID(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		require.NoError(t, err)
		if e.GetWorkflowExecutionStartedEventAttributes() == nil {
			require.NotContains(t, e.String(), token)
		}
	}
}
