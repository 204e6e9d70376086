package temporal

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// faultOf returns the first fault of a component.
func faultOf(c *Client, component string) wire.ControlPlaneFault {
	for _, f := range c.Faults(context.Background()) {
		if f.Component == component {
			return f
		}
	}
	return wire.ControlPlaneFault{}
}

// becomes waits until the first fault of a component has the reason; "" means none.
func becomes(t *testing.T, c *Client, component, reason string) (f wire.ControlPlaneFault) {
	t.Helper()
	harness.Eventually(t, "the fault of "+component+" is "+reason, func() bool {
		f = faultOf(c, component)
		return f.Reason == reason
	})
	return f
}

// startDrain starts a run of type Drain with a host and a short workflow task timeout.
func startDrain(t *testing.T, c *Client, host string) client.WorkflowRun {
	t.Helper()
	run, err := c.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: "node:" + host + ":" + schema.NewID(),
		WorkflowTaskTimeout: time.Second, TypedSearchAttributes: sdk.NewSearchAttributes(sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrHost).ValueSet(host))}, "Drain")
	require.NoError(t, err)
	return run
}

// startWorker starts a worker that has the workflow as Drain. The function stops it.
func startWorker(t *testing.T, c *Client, o worker.Options, drain any) (stop func()) {
	t.Helper()
	w := worker.New(c.sdk, lifecycle.TaskQueue, o)
	w.RegisterWorkflowWithOptions(drain, workflow.RegisterOptions{Name: "Drain"})
	w.RegisterActivityWithOptions(func(context.Context) error {
		return sdk.NewApplicationError("Postgres at db does not respond\nnext: rm -rf /", string(schema.KindServiceUnavailable))
	}, activity.RegisterOptions{Name: "RecordProgress"})
	require.NoError(t, w.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			w.Stop()
		}
	}
	t.Cleanup(stop)
	return stop
}

// sleeps is a workflow that does nothing for an hour.
func sleeps(ctx workflow.Context) error { return workflow.Sleep(ctx, time.Hour) }

func TestFaultOfAbsentWorkers(t *testing.T) {
	c := connect(t)
	startDrain(t, c, "gpu-17")
	f := becomes(t, c, "worker", "no_pollers")
	harness.Eventually(t, "the drain's workflow task counts", func() bool { // the server counts after it answers
		f = becomes(t, c, "worker", "no_pollers")
		return regexp.MustCompile("tasks that wait: [1-9]").MatchString(f.Message)
	})
	require.NotEmpty(t, f.Next)
	startWorker(t, c, worker.Options{}, sleeps)
	becomes(t, c, "worker", "")
}

// Temporal lists a worker that stopped for minutes.
func TestStoppedWorkersDoNotPoll(t *testing.T) {
	t.Parallel()
	poller := func(build string, ago time.Duration) *taskqueuepb.PollerInfo {
		o := &deploymentpb.WorkerDeploymentOptions{BuildId: build, WorkerVersioningMode: enumspb.WORKER_VERSIONING_MODE_VERSIONED}
		return &taskqueuepb.PollerInfo{LastAccessTime: timestamppb.New(time.Now().Add(-ago)), DeploymentOptions: o}
	}
	unversioned := poller("", time.Second)
	unversioned.DeploymentOptions = nil
	builds := buildsOf([]*taskqueuepb.PollerInfo{poller("b2", 0), poller("b1", time.Minute), poller("b2", time.Minute), poller("b3", 2*PollerFresh)}, PollerFresh)
	require.Equal(t, []string{"b1", "b2"}, builds)
	require.Equal(t, []string{""}, buildsOf([]*taskqueuepb.PollerInfo{unversioned}, PollerFresh))
}

func TestFaultOfBacklog(t *testing.T) {
	c := connect(t)
	startDrain(t, c, "gpu-17")
	var queues []queue
	harness.Eventually(t, "the task waits", func() bool {
		var err error
		queues, err = prober{c.connection}.queues(t.Context())
		return err == nil && queues[0].stats.GetApproximateBacklogCount() > 0 && queues[0].stats.GetApproximateBacklogAge().AsDuration() > 0
	})
	require.Empty(t, queues[0].builds)
	aged := func(age time.Duration) []queue {
		return []queue{{"workflow", []string{""}, &taskqueuepb.TaskQueueStats{ApproximateBacklogCount: 7, ApproximateBacklogAge: durationpb.New(age)}},
			{"activity", []string{""}, nil}}
	}
	require.Empty(t, queueFaults(aged(backlogAfter)))
	faults := queueFaults(aged(3 * time.Minute))
	require.Len(t, faults, 1)
	require.Equal(t, "backlog", faults[0].Reason)
	require.Contains(t, faults[0].Message, "7 workflow tasks wait in the task queue lifecycle, the oldest for 3m")
	onlyWorkflows := aged(0)
	onlyWorkflows[1].builds = nil
	faults = queueFaults(onlyWorkflows)
	require.Len(t, faults, 1)
	require.Contains(t, faults[0].Message, "for activity tasks")
}

// A worker of another build has a command where the history has a timer.
func TestFaultOfNondeterminism(t *testing.T) {
	c := connect(t)
	stop := startWorker(t, c, worker.Options{}, sleeps)
	run := startDrain(t, c, "gpu-17")
	harness.Eventually(t, "the timer started", func() bool {
		d, err := c.sdk.DescribeWorkflowExecution(t.Context(), run.GetID(), "")
		return err == nil && d.GetPendingWorkflowTask() == nil && d.GetWorkflowExecutionInfo().GetHistoryLength() >= 5
	})
	stop()
	startWorker(t, c, worker.Options{}, func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute}), "RecordProgress").Get(ctx, nil)
	})
	require.NoError(t, c.sdk.SignalWorkflow(t.Context(), run.GetID(), "", lifecycle.SignalAgent, nil))
	f := becomes(t, c, "tasks", "nondeterminism")
	require.Contains(t, f.Message, "the workflow tasks of 1 operation fail, for example of the drain of gpu-17: [TMPRL1100]")
	require.Contains(t, f.Next, "gpuaas admin promote")
	harness.Eventually(t, "Temporal reports it too", func() bool {
		runs, err := c.list(t.Context(), reportedProblems, sampled)
		return err == nil && len(runs) == 1
	})
	require.NoError(t, c.sdk.TerminateWorkflow(t.Context(), run.GetID(), "", "test"))
	becomes(t, c, "tasks", "")
}

func TestFaultOfRetriedActivity(t *testing.T) {
	c := connect(t)
	startWorker(t, c, worker.Options{}, func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute,
			RetryPolicy: &sdk.RetryPolicy{InitialInterval: 10 * time.Millisecond, BackoffCoefficient: 1}}), "RecordProgress").Get(ctx, nil)
	})
	for _, host := range []string{"gpu-17", "gpu-18"} {
		startDrain(t, c, host)
	}
	var f wire.ControlPlaneFault
	harness.Eventually(t, "both are counted", func() bool {
		f = faultOf(c, "tasks")
		return strings.Contains(f.Message, "the activity RecordProgress fails in 2 operations and is retried")
	})
	require.Equal(t, string(schema.KindServiceUnavailable), f.Reason)
	require.Contains(t, f.Message, "Postgres at db does not respond next: rm -rf /")
	require.Contains(t, f.Next, "gpuaas op show gpu-1")

	run := startDrain(t, c, "gpu-19")
	op := lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: run.GetID(), RunID: run.GetRunID()}
	var faults []wire.ControlPlaneFault
	harness.Eventually(t, "the call is retried", func() bool {
		var err error
		faults, err = c.Operations.RunFaults(t.Context(), op)
		return err == nil && len(faults) == 1
	})
	require.Equal(t, wire.ControlPlaneFault{Component: "tasks", Reason: string(schema.KindServiceUnavailable), Message: faults[0].Message}, faults[0])
	require.Regexp(t, "^the activity RecordProgress fails and is retried, now in attempt [0-9]+: .*Postgres at db does not respond next: rm -rf /", faults[0].Message)
	op.RunID = schema.NewID() // of another operation
	faults, err := c.Operations.RunFaults(t.Context(), op)
	require.NoError(t, err)
	require.Empty(t, faults)
}

// TestRetriedFailure: the reason of a fault is that of the error, and its kind if it has none. The first
// try is no fault, and neither is the silence of a node.
func TestRetriedFailure(t *testing.T) {
	t.Parallel()
	failure := func(e *schema.Error) *failurepb.Failure {
		return sdk.GetDefaultFailureConverter().ErrorToFailure(activities.Failure(e, false))
	}
	outage := schema.NewError(schema.KindServiceUnavailable, "MAAS does not respond")
	silence := &failurepb.Failure{FailureInfo: &failurepb.Failure_TimeoutFailureInfo{TimeoutFailureInfo: &failurepb.TimeoutFailureInfo{TimeoutType: enumspb.TIMEOUT_TYPE_HEARTBEAT}}}
	for name, c := range map[string]struct {
		attempt int32
		failure *failurepb.Failure
		reason  string
	}{
		"first try":       {1, failure(outage), ""},
		"no failure":      {2, nil, ""},
		"silence":         {2, silence, ""},
		"a node boots":    {9, failure(schema.NewError(schema.KindAgentSilent, "the node is restarting")), ""},
		"kind":            {2, failure(outage), string(schema.KindServiceUnavailable)},
		"specific reason": {2, failure(outage.WithReason("provider_unavailable")), "provider_unavailable"},
		"foreign":         {2, &failurepb.Failure{Message: "x"}, "failing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, reason := retriedFailure(&workflowpb.PendingActivityInfo{Attempt: c.attempt, LastFailure: c.failure})
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.reason != "", f != nil)
		})
	}
}

// A round that fails is a fault while its run continues, with the error's reason and next
// step.
func TestFaultOfARound(t *testing.T) {
	c := connect(t)
	var broken atomic.Bool
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		for range 1000 {
			_ = workflow.ExecuteActivity(ctx, "round").Get(ctx, nil)
			if err := workflow.Sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	}, workflow.RegisterOptions{Name: lifecycle.WorkflowWatch})
	w.RegisterActivityWithOptions(func(context.Context) error {
		if broken.Load() {
			return activities.Failure(schema.NewError(schema.KindServiceUnavailable, "Temporal has no runs").
				WithReason("runs_missing").WithNext("check TEMPORAL_NAMESPACE"), true)
		}
		return nil
	}, activity.RegisterOptions{Name: "round"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	require.NoError(t, c.sdk.ScheduleClient().GetHandle(t.Context(), lifecycle.ScheduleWatch).Trigger(t.Context(), client.ScheduleTriggerOptions{}))
	broken.Store(true)
	f := becomes(t, c, lifecycle.ScheduleWatch, "runs_missing")
	require.Equal(t, "check TEMPORAL_NAMESPACE", f.Next)
	require.Contains(t, f.Message, "its last round failed (service_unavailable): Temporal has no runs")
	broken.Store(false)
	becomes(t, c, lifecycle.ScheduleWatch, "")
}

// A node that does not respond parks its operation. It is not a fault of the control
// plane.
func TestSilentNodeIsNoFault(t *testing.T) {
	b := waitingTask(t, time.Second)
	b.until(func(a *workflowpb.PendingActivityInfo) bool { return a.GetAttempt() >= 2 && a.GetLastFailure() != nil })
	harness.Eventually(t, "the run is listed", func() bool {
		runs, err := b.list(t.Context(), runningOperations, sampled)
		return err == nil && len(runs) == 1
	})
	require.Empty(t, faultOf(b.Client, "tasks"))
}

func TestFaultsOfVersions(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	build := func(id string) worker.Options {
		return worker.Options{DeploymentOptions: worker.DeploymentOptions{UseVersioning: true, DefaultVersioningBehavior: workflow.VersioningBehaviorAutoUpgrade,
			Version: worker.WorkerDeploymentVersion{DeploymentName: Deployment, BuildID: id}}}
	}
	makeCurrent := func(id string) {
		harness.Eventually(t, id+" is current", func() bool {
			_, err := c.sdk.WorkerDeploymentClient().GetHandle(Deployment).SetCurrentVersion(ctx, client.WorkerDeploymentSetCurrentVersionOptions{BuildID: id})
			return err == nil
		})
	}
	startWorker(t, c, build("b1"), sleeps)
	f := becomes(t, c, "worker", "no_current_version")
	require.Contains(t, f.Next, "gpuaas admin promote --to b1")
	makeCurrent("b1")
	becomes(t, c, "worker", "")
}

func TestFaultOfVersionWithoutWorkers(t *testing.T) {
	t.Parallel()
	version := func(build string) worker.WorkerDeploymentVersion {
		return worker.WorkerDeploymentVersion{DeploymentName: Deployment, BuildID: build}
	}
	current := version("b2")
	d := client.WorkerDeploymentInfo{RoutingConfig: client.WorkerDeploymentRoutingConfig{CurrentVersion: &current},
		VersionSummaries: []client.WorkerDeploymentVersionSummary{
			{Version: version("b1"), DrainageStatus: client.WorkerDeploymentVersionDrainageStatusDraining}, {Version: current}}}
	for name, tc := range map[string]struct {
		builds, want []string
	}{
		"both":           {[]string{"b1", "b2"}, nil},
		"no worker":      {nil, nil},            // no_pollers is the fault
		"not the older":  {[]string{"b2"}, nil}, // its open operations move to the current version
		"not the newest": {[]string{"b1"}, []string{"no gpuaas-worker of the current version b2 polls, and all operations wait for it"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var messages []string
			for _, f := range versionFaults(d, tc.builds) {
				messages = append(messages, f.Message)
			}
			require.Equal(t, tc.want, messages)
		})
	}
}

// Each probe that fails is a fault, and the unavailable Temporal is one fault.
func TestFaultOfProbe(t *testing.T) {
	t.Parallel()
	c := dialUnusedAddress(t)
	failing := probe{"worker", "the task queue", func(context.Context) ([]wire.ControlPlaneFault, error) {
		return []wire.ControlPlaneFault{{Component: "worker", Reason: "backlog"}}, errors.New("broken")
	}}
	faults := prober{c.connection}.run(t.Context(), failing)
	require.Equal(t, []string{"backlog", string(schema.KindInternal)}, []string{faults[0].Reason, faults[1].Reason})
	require.Contains(t, faults[1].Message, "reading the task queue")
}
