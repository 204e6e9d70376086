package workflows

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// The corpus has a history of each action in each situation in which an upgrade may find
// an operation: testdata/corpus/RELEASE/ACTION.SITUATION.json.gz. A release that changes
// a workflow keeps the folders of the releases before it. Record with:
//
//	go test ./workflows -run 'TestHistories|TestRecordCorpus' -record RELEASE

// fixtureState is the state of an operation when its history was read.
type fixtureState string

const (
	// isRunning: the first step is in progress.
	isRunning fixtureState = "running"
	// isParked: a step failed permanently.
	isParked fixtureState = "parked"
	// isReset: a person reset the parked run, or the running run of an action that does
	// not park, to its beginning.
	isReset fixtureState = "reset"
	// isUndoParked: the operation was canceled, and its undo is parked.
	isUndoParked fixtureState = "undo-parked"
	// isCanceled: the operation was canceled and undone.
	isCanceled fixtureState = "canceled"
)

// corpusCase is one history of the corpus.
type corpusCase struct {
	plan      lifecycle.Plan
	situation fixtureState
}

func (c corpusCase) name() string { return string(c.plan.Action) + "." + string(c.situation) }

// corpusOptions are the options of an action: a retirement drains the node, so that it
// has a phase that parks.
func corpusOptions(a lifecycle.Action) lifecycle.Options {
	return lifecycle.Options{Drain: a == lifecycle.ActionRetire}
}

// corpusCases returns the situations that each action can be in.
func corpusCases() (all []corpusCase) {
	for _, p := range lifecycle.Operations() {
		p, _ := lifecycle.PlanOf(p.Action, corpusOptions(p.Action))
		for _, s := range []fixtureState{isRunning, isParked, isReset, isUndoParked, isCanceled} {
			c := corpusCase{p, s}
			if s == isParked && !c.canPark() || s == isUndoParked && p.Undo == nil {
				continue
			}
			all = append(all, c)
		}
	}
	return all
}

// world is a node whose first task hangs, or fails if the operation must park. Its
// provider does not release the machine where the removal or the undo must wait.
func (c corpusCase) world(parks bool) *world {
	w := newWorld(c.plan.From[0])
	for _, tt := range []task.Type{task.WorkloadCordon, task.WorkloadUncordon, task.WorkloadDrain, task.NodeProbe, task.FactsCollect, task.AgentUpgrade} {
		w.open[tt] = !parks
		if parks {
			w.on[tt] = func(activities.TaskSpec) (task.Result, error) {
				return task.Result{}, final(schema.KindTaskFailed, "no luck")
			}
		}
	}
	release := schema.NewError(schema.KindServiceUnavailable, "the provider does not respond")
	if parks || c.situation == isUndoParked {
		release = schema.NewError(schema.KindInvalidRequest, "the provider refuses")
	}
	switch {
	case c.plan.Action == lifecycle.ActionTerminate:
		w.creates, w.fail["release"] = true, release
		if c.situation == isUndoParked {
			w.fail["release"], w.fail["describe"] = schema.NewError(schema.KindServiceUnavailable, "the provider does not respond"), release
		}
	case c.plan.Action == lifecycle.ActionRemove || c.situation == isUndoParked:
		w.fail["release"] = release
	}
	if undo := c.plan.Undo; undo != nil && (undo.Name == lifecycle.PhaseUndoCordon || undo.Name == lifecycle.PhaseUndoRecover) {
		delete(w.open, task.WorkloadUncordon)
		if c.situation == isUndoParked {
			w.on[task.WorkloadUncordon] = func(activities.TaskSpec) (task.Result, error) {
				return task.Result{}, final(schema.KindTaskFailed, "no luck")
			}
		}
	}
	return w
}

// shortBudgets are the activities of Record with budgets of one second, so that a phase
// that only waits for the node parks.
type shortBudgets struct{ *activities.Record }

// ClaimNode shortens the plan of the claim.
func (s *shortBudgets) ClaimNode(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	claim, err := s.Record.ClaimNode(ctx, r)
	claim.Plan.Phases = slices.Clone(claim.Plan.Phases)
	for i := range claim.Plan.Phases {
		claim.Plan.Phases[i].Budget = time.Second
	}
	return claim, err
}

// corpusWorker is world.worker with short budgets if the operation must park.
func (w *world) corpusWorker(c *temporal.Client, short bool) worker.Worker {
	if !short {
		return w.worker(c)
	}
	out := worker.New(c.SDK(), lifecycle.TaskQueue, worker.Options{})
	for _, e := range Registry() {
		out.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	out.RegisterActivityWithOptions(&shortBudgets{&activities.Record{Records: w}}, activity.RegisterOptions{})
	tasks := &activities.Task{Records: w, Tasks: w, NewTasks: activities.TaskSigner{Signer: w}}
	out.RegisterActivityWithOptions(tasks.VoidTasks, activity.RegisterOptions{Name: "VoidTasks"})
	return out
}

// waitsForAgent reports whether the plan has no step on the node or at a provider.
func (c corpusCase) waitsForAgent() bool {
	return c.plan.Phases[0].Name == lifecycle.PhaseBundle
}

// record runs the operation into its situation and returns its history.
func (c corpusCase) record(t *testing.T, conn *temporal.Client) *historypb.History {
	t.Helper()
	parks := c.parks()
	w := c.world(parks)
	r := &recorder{Client: conn, t: t, world: w, name: c.name()}
	running := w.corpusWorker(conn, parks && c.waitsForAgent())
	require.NoError(t, running.Start())
	defer running.Stop()
	var err error
	r.op, err = conn.Operations.Submit(t.Context(), lifecycle.OperationInput{
		OperationID: schema.NewID(), NodeID: testNode, Host: "gpu-17", Action: c.plan.Action, Actor: "alice",
		Reason: "RMA-4411", CorrelationID: "c-1", Options: corpusOptions(c.plan.Action),
	})
	require.NoError(t, err)
	r.op.WorkflowID = lifecycle.WorkflowID(c.plan.Action, "gpu-17", testNode)
	defer func() { // the case may leave it open
		_ = conn.SDK().TerminateWorkflow(context.WithoutCancel(t.Context()), r.op.WorkflowID, "", "recorded")
	}()
	reached := func() {
		if parks {
			r.until(lifecycle.OperationParked)
			return
		}
		r.untilStarted(c.waitsForAgent())
	}
	reached()
	switch c.situation {
	case isReset:
		r.reset()
		reached()
	case isUndoParked:
		r.decide(lifecycle.DecisionCancel)
		r.until(lifecycle.OperationParked)
	case isCanceled:
		r.decide(lifecycle.DecisionCancel)
		st, err := conn.Operations.Result(t.Context(), r.op.WorkflowID, r.op.RunID)
		require.NoError(t, err)
		require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
	}
	return r.save(filepath.Join("testdata", "corpus"), c.name())
}

// parks reports whether the operation parks before it reaches its situation.
func (c corpusCase) parks() bool {
	return c.situation == isParked || c.situation == isReset && c.canPark()
}

// canPark reports whether the action has a phase that parks.
func (c corpusCase) canPark() bool {
	return slices.ContainsFunc(c.plan.Phases[:len(c.plan.Phases)-1], func(s lifecycle.PhaseSpec) bool { return !s.BestEffort })
}

// untilStarted waits until the first step is in progress.
func (r *recorder) untilStarted(waits bool) {
	r.t.Helper()
	r.until(lifecycle.OperationRunning)
	harness.Eventually(r.t, "a step in progress", func() bool {
		d, err := r.SDK().DescribeWorkflowExecution(r.t.Context(), r.op.WorkflowID, r.op.RunID)
		require.NoError(r.t, err)
		return waits || len(d.GetPendingActivities()) > 0
	})
}

// reset resets the run to its first workflow task and continues with the new run.
func (r *recorder) reset() {
	r.t.Helper()
	r.op.RunID = temporaltest.Reset(r.t, r.SDK(), r.Namespace(), r.op.WorkflowID, r.op.RunID, 0)
}

// TestRecordCorpus runs operations into the situations of the corpus on a real server,
// and writes their histories with -record.
func TestRecordCorpus(t *testing.T) {
	conn, err := temporal.Dial(temporal.Config{Address: server.Address(t), Namespace: "t-" + schema.NewID()})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, conn.Installation.Setup(t.Context()))
	for _, c := range corpusCases() {
		t.Run(c.name(), func(t *testing.T) { //nolint:paralleltest // one worker on one task queue at a time
			h := c.record(t, conn)
			c.verify(t, h)
			require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, h))
		})
	}
}

// verify checks that a history ends in the situation of the case.
func (c corpusCase) verify(t *testing.T, h *historypb.History) {
	t.Helper()
	events := h.GetEvents()
	require.Equal(t, c.plan.Workflow, events[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName())
	last := events[len(events)-1].GetEventType()
	if c.situation == isCanceled {
		require.Equal(t, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED, last)
		return
	}
	require.NotContains(t, []enumspb.EventType{
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
	}, last, "the run is closed")
	var wasReset bool
	var attention lifecycle.Attention
	for _, e := range events {
		wasReset = wasReset || e.GetWorkflowTaskFailedEventAttributes().GetCause() == enumspb.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW
		if p := e.GetUpsertWorkflowSearchAttributesEventAttributes().GetSearchAttributes().GetIndexedFields()[lifecycle.AttrAttention]; p != nil {
			require.NoError(t, converter.GetDefaultDataConverter().FromPayload(p, &attention))
		}
	}
	parks := c.parks()
	require.Equal(t, c.situation == isReset, wasReset)
	require.Equal(t, parks || c.situation == isUndoParked, attention != "" && attention != lifecycle.AttentionNone, "it waits for %q", attention)
	require.Equal(t, c.situation == isUndoParked, attention == lifecycle.AttentionCompensation)
}

// TestCorpus checks that the newest release of the corpus has exactly the expected
// histories, and that each is in its situation. TestRecordedHistoriesReplay replays the
// histories of every release.
func TestCorpus(t *testing.T) {
	t.Parallel()
	releases, err := filepath.Glob("testdata/corpus/*")
	require.NoError(t, err)
	require.NotEmpty(t, releases)
	newest := slices.Max(releases)
	want := map[string]corpusCase{}
	for _, c := range corpusCases() {
		want[filepath.Join(newest, c.name()+".json.gz")] = c
	}
	have := map[string]*historypb.History{}
	for name, h := range fixtures(t) {
		if filepath.Dir(name) == newest {
			have[name] = h
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(have)),
		"record the corpus again: go test ./workflows -run 'TestHistories|TestRecordCorpus' -record "+filepath.Base(newest))
	for name, c := range want {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			c.verify(t, have[name])
		})
	}
}
