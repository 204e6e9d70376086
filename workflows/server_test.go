package workflows

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
)

// Behavior that only a real server shows.

// onServer connects a recorder to a namespace of its own and submits a drain.
func onServer(t *testing.T, w *world) (r *recorder, namespace string) {
	t.Helper()
	namespace = "t-" + schema.NewID()
	c, err := temporal.Dial(temporal.Config{Address: server.Address(t), Namespace: namespace})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.Installation.Setup(t.Context()))
	return &recorder{Client: c, t: t, world: w}, namespace
}

func (r *recorder) submit(a lifecycle.Action) {
	r.t.Helper()
	var err error
	r.op, err = r.Operations.Submit(r.t.Context(), lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: testNode, Host: "gpu-17",
		Action: a, Actor: "alice", Reason: "RMA-4411", CorrelationID: "c-1"})
	require.NoError(r.t, err)
}

// TestRepeatedDecision: a decision with the same ID has the same answer, even after
// its operation ended, and another decision with that ID is rejected.
func TestRepeatedDecision(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	fails(task.WorkloadCordon)(w)
	w.open[task.WorkloadDrain] = true
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	parked := r.until(lifecycle.OperationParked)
	ctx, ops := t.Context(), r.Operations
	skip := lifecycle.ResolveRequest{ID: schema.NewID(), OperationID: r.op.OperationID, Phase: lifecycle.PhaseCordon,
		StuckSince: &parked.Stuck.Since, Decision: lifecycle.DecisionSkip, Reason: "it is cordoned by hand", By: "bob"}
	first, err := ops.Resolve(ctx, r.op.WorkflowID, skip)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationRunning, first.Operation.Status)
	other := skip
	other.Reason = "another reason"
	cancel := skip
	cancel.Decision = lifecycle.DecisionCancel

	again, err := ops.Resolve(ctx, r.op.WorkflowID, skip)
	require.NoError(t, err)
	require.Equal(t, first, again, "while the operation runs")
	later := skip
	later.Phase, later.StuckSince = lifecycle.PhaseDrain, nil
	again, err = ops.Resolve(ctx, r.op.WorkflowID, later)
	require.NoError(t, err)
	require.Equal(t, first, again, "read again after the decision")
	for _, r2 := range []lifecycle.ResolveRequest{other, cancel} {
		_, err = ops.Resolve(ctx, r.op.WorkflowID, r2)
		require.Equal(t, schema.KindKeyInUse, schema.KindOf(err), "%v", err)
	}

	end := lifecycle.ResolveRequest{ID: schema.NewID(), OperationID: r.op.OperationID, Decision: lifecycle.DecisionCancel, Reason: "wrong node", By: "bob"}
	canceled, err := ops.Resolve(ctx, r.op.WorkflowID, end)
	require.NoError(t, err)
	st, err := ops.Result(ctx, r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
	r.submit(lifecycle.ActionQuarantine) // the node's newest run is another operation
	for want, request := range map[*lifecycle.OperationStatus]lifecycle.ResolveRequest{&first: skip, &canceled: end} {
		again, err = ops.Resolved(ctx, st.Operation.WorkflowID, st.Operation.RunID, request)
		require.NoError(t, err)
		require.Equal(t, *want, again, "after the end")
	}
	_, err = ops.Resolved(ctx, st.Operation.WorkflowID, st.Operation.RunID, other)
	require.Equal(t, schema.KindKeyInUse, schema.KindOf(err), "%v", err)
	other.ID = schema.NewID()
	_, err = ops.Resolved(ctx, st.Operation.WorkflowID, st.Operation.RunID, other)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err), "%v", err)
}

// envStall makes the test binary a worker, at "ADDRESS NAMESPACE STEP", that stalls
// before it has enqueued the step's task. The first cordon fails.
const envStall = "GPUAAS_TEST_STALLING_WORKER"

const stalled = "stalled"

// atPark as the STEP lets the worker stall before it has recorded the park.
const atPark = "park"

func stallingWorker(at string) {
	args := strings.Fields(at)
	address, namespace := args[0], args[1]
	w := newWorld(lifecycle.NodeActive)
	if args[2] != string(task.WorkloadDrain) {
		fails(task.WorkloadCordon)(w)
	}
	w.stall = func(step string) {
		if step == args[2] {
			fmt.Println(stalled)
			select {}
		}
	}
	w.onPark = func(parkID string) {
		if args[2] == atPark {
			fmt.Println(stalled, parkID)
			select {}
		}
	}
	c, err := temporal.Dial(temporal.Config{Address: address, Namespace: namespace})
	if err == nil {
		err = w.worker(c).Start()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	select {} // until the test kills the process
}

// killStalled starts a worker process that stalls before it has enqueued the step's task,
// runs act meanwhile, and kills the process when it stalls. At atPark it returns the ID of
// the park.
func (r *recorder) killStalled(namespace, step string, act func()) (parkID string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), harness.Timeout)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), envStall+"="+server.Address(r.t)+" "+namespace+" "+step)
	out, err := child.StdoutPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, child.Start())
	act()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(r.t, err)
	said, parkID, _ := strings.Cut(strings.TrimSpace(line), " ")
	require.Equal(r.t, stalled, said)
	require.NoError(r.t, child.Process.Kill())
	require.Error(r.t, child.Wait())
	return parkID
}

// TestKilledWorkerBeforeEnqueue kills the worker that is about to enqueue a task.
// Only a workflow task was open then, whose timeout bounds the delay. The activity
// with the heartbeat timeout is scheduled when the task is stored.
func TestKilledWorkerBeforeEnqueue(t *testing.T) {
	r, namespace := onServer(t, newWorld(lifecycle.NodeActive))
	ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
	defer cancel()
	r.killStalled(namespace, string(task.WorkloadDrain), func() { r.submit(lifecycle.ActionDrain) })

	defer r.startWorker()()
	st, err := r.Operations.Result(ctx, r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, []string{string(task.WorkloadDrain)}, r.world.enqueued, "the second worker enqueues the task")
	var lost bool
	for _, e := range r.keep("").GetEvents() {
		if a := e.GetWorkflowTaskTimedOutEventAttributes(); a != nil {
			lost = lost || a.GetTimeoutType() == enumspb.TIMEOUT_TYPE_START_TO_CLOSE
		}
		require.NotEqual(t, enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT, e.GetEventType())
	}
	require.True(t, lost, "the killed worker had the workflow task")
}

// TestKilledWorkerAfterVoid kills the worker that voided the open tasks for a decision and
// is about to enqueue the next one, in the same workflow task. That workflow task runs
// again, and another void would end a task that the first run had enqueued.
func TestKilledWorkerAfterVoid(t *testing.T) {
	r, namespace := onServer(t, newWorld(lifecycle.NodeActive))
	ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
	defer cancel()
	taken := make(chan struct{})
	r.killStalled(namespace, string(task.WorkloadCordon)+"#2", func() {
		r.submit(lifecycle.ActionDrain)
		parked := r.until(lifecycle.OperationParked)
		go func() {
			defer close(taken)
			// The response may be lost with the worker. The status shows whether it was taken.
			_, _ = r.Operations.Resolve(ctx, r.op.WorkflowID, lifecycle.ResolveRequest{OperationID: r.op.OperationID,
				Phase: parked.Stuck.Phase, Decision: lifecycle.DecisionRetry, Reason: "because", By: "bob"})
		}()
	})

	r.world.voided[string(task.WorkloadCordon)] = true // by the first worker, in the database
	defer r.startWorker()()
	st, err := r.Operations.Result(ctx, r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
	<-taken
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, 2, st.Operation.Phases[0].Attempt)
	require.NotContains(t, r.world.story(), "void", "the history has the void of the first worker")
}

// TestKilledWorkerAtPark kills the worker that records a park. Its workflow task runs
// again and records the park with another time, but with the same ID, so that the audit
// has it once.
func TestKilledWorkerAtPark(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	fails(task.WorkloadCordon)(w)
	fails(task.WorkloadDrain)(w)
	r, namespace := onServer(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
	defer cancel()
	first := r.killStalled(namespace, atPark, func() { r.submit(lifecycle.ActionDrain) })
	require.NotEmpty(t, first)

	defer r.startWorker()()
	r.until(lifecycle.OperationParked)
	require.Equal(t, []string{first}, w.parkIDs)
	r.decide(lifecycle.DecisionRetry)
	harness.Eventually(t, "the next park", func() bool { return w.count("park drain") == 1 })
	require.NotEqual(t, first, w.parkIDs[1])
	r.decide(lifecycle.DecisionCancel)
	_, err := r.Operations.Result(ctx, r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
}

// start starts the run that continues a parked operation.
func (r *recorder) start(in lifecycle.OperationInput, c *Carried) {
	r.t.Helper()
	plan, _ := lifecycle.PlanOf(in.Action, in.Options)
	run, err := r.SDK().ExecuteWorkflow(r.t.Context(), client.StartWorkflowOptions{ID: r.op.WorkflowID, TaskQueue: lifecycle.TaskQueue},
		plan.Workflow, in, c)
	require.NoError(r.t, err)
	r.op.RunID = run.GetRunID()
}

// resolveInBackground sends a decision, whose answer needs a worker, and returns when the
// server has it.
func (r *recorder) resolveInBackground(d lifecycle.Decision) (answer <-chan error) {
	r.t.Helper()
	request := lifecycle.ResolveRequest{OperationID: r.op.OperationID, ID: schema.NewID(), Decision: d, Reason: "because", By: "bob", Via: "api"}
	done := make(chan error, 1)
	go func() {
		_, err := r.Operations.Resolve(r.t.Context(), r.op.WorkflowID, request)
		done <- err
	}()
	harness.Eventually(r.t, "the server has the decision", func() bool {
		_, err := r.SDK().WorkflowService().PollWorkflowExecutionUpdate(r.t.Context(), &workflowservice.PollWorkflowExecutionUpdateRequest{
			Namespace:  r.Namespace(),
			UpdateRef:  &updatepb.UpdateRef{WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: r.op.WorkflowID}, UpdateId: request.ID},
			WaitPolicy: &updatepb.WaitPolicy{LifecycleStage: enumspb.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED},
		})
		return err == nil
	})
	return done
}
