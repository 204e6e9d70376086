package workflows

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
)

const testNode = "0198c0de-0000-7000-8000-000000000001"

// world is the outside that a workflow test runs against: ports in memory that
// write down every call in order, and a node that answers tasks as told. The
// store's own behaviour is tested on Postgres; here only its contract counts.
type world struct {
	mu    sync.Mutex
	calls []string
	// fail lets the named call fail with an error, every time.
	fail map[string]error
	// on answers a node task; unset types succeed.
	on map[schema.TaskType]func(spec schema.TaskSpec) (schema.TaskResult, error)
	// silent lets tasks of these types run into their time limit, open leaves
	// them without an answer.
	silent    map[schema.TaskType]bool
	open      map[schema.TaskType]bool
	prior     schema.NodeState
	claimed   schema.NodeState
	finished  *schema.Finish
	parks     []schema.Stuck
	decisions []schema.Decision
	progress  schema.EnrollmentProgress
	heartbeat time.Time
	sku       schema.SKU
	gpus      int
	wasCordon bool
	specs     []schema.TaskSpec
}

func newWorld(prior schema.NodeState) *world {
	return &world{
		fail: map[string]error{}, on: map[schema.TaskType]func(schema.TaskSpec) (schema.TaskResult, error){},
		silent: map[schema.TaskType]bool{}, open: map[schema.TaskType]bool{}, prior: prior, heartbeat: time.Now().Add(time.Hour),
		sku: schema.SKU{Name: "cpu-dev", MinCPUs: 1, Active: true},
	}
}

func (w *world) note(call string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fail[call]; err != nil {
		w.calls = append(w.calls, call+"!")
		return err
	}
	w.calls = append(w.calls, call)
	return nil
}

// story is the calls in order, repeated failures folded into one.
func (w *world) story() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Compact(slices.Clone(w.calls))
}

func (w *world) heal(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.fail, call)
}

func (w *world) Claim(_ context.Context, r schema.ClaimRequest) (schema.Claim, error) {
	if err := w.note("claim"); err != nil {
		return schema.Claim{}, err
	}
	move, err := schema.CheckMove(r.Action, w.prior)
	if err != nil {
		return schema.Claim{}, err
	}
	w.claimed = w.prior
	if move.Claim != "" {
		w.claimed = move.Claim
	}
	fence := schema.Fence{NodeID: r.NodeID, OperationID: r.OperationID, OpSeq: 7, Actor: r.Actor}
	if !move.Operation {
		fence.OpSeq = 0
	}
	return schema.Claim{
		Fence: fence,
		Prior: w.prior, State: w.claimed, Host: "gpu-17", SKU: w.sku, GPUsTotal: w.gpus,
		Provider: "manual", Incarnation: 1,
	}, nil
}

func (w *world) Advance(_ context.Context, _ schema.Fence, a schema.Advance) error {
	call := "advance " + a.Phase
	switch {
	case a.Stuck != nil:
		call = "park " + a.Phase
	case a.Decision != nil:
		call = "decide " + string(a.Decision.Decision)
	case a.Instance != "":
		call = "instance " + string(a.Instance)
	case a.Facts != nil:
		call = "facts"
	}
	if err := w.note(call); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.Stuck != nil {
		w.parks = append(w.parks, *a.Stuck)
	}
	if a.Decision != nil {
		w.decisions = append(w.decisions, a.Decision.Decision)
	}
	return nil
}

func (w *world) Finish(_ context.Context, _ schema.Fence, f schema.Finish) error {
	f.RunID = "" // the test environment's
	if err := w.note("finish " + string(f.Status)); err != nil {
		return err
	}
	w.finished = &f
	return nil
}

func (w *world) Enrollment(context.Context, string) (schema.EnrollmentProgress, error) {
	return w.progress, w.note("read enrollment")
}

func (w *world) LastHeartbeat(context.Context, string) (time.Time, error) {
	return w.heartbeat, w.note("heartbeat?")
}

func (w *world) Void(context.Context, schema.Fence) error { return w.note("void") }

func (w *world) Prepare(context.Context, schema.TaskSpec, schema.TaskOwner) (schema.TaskRow, error) {
	panic("the world answers tasks by itself")
}

func (w *world) Enqueue(context.Context, schema.TaskSpec, schema.TaskOwner, schema.TaskRow, []byte) error {
	panic("the world answers tasks by itself")
}

func (w *world) Plan(_ context.Context, _ schema.Fence, r schema.Resource) (schema.Resource, error) {
	return r, w.note("plan")
}

func (w *world) Created(context.Context, schema.Fence, string, string) error {
	return w.note("created")
}

func (w *world) Released(context.Context, schema.Fence, string) error { return w.note("released") }

func (w *world) Open(context.Context, string) ([]schema.Resource, error) {
	return []schema.Resource{{ResourceID: "r1", Kind: "instance", Provider: "manual"}}, w.note("ledger")
}

func (w *world) Name() string  { return "manual" }
func (w *world) Creates() bool { return false }

func (w *world) Ensure(context.Context, schema.Resource, string) (string, error) {
	return "gpu-17", w.note("ensure")
}

func (w *world) Release(context.Context, schema.Resource) error { return w.note("release") }

// task plays the node.
func (w *world) task(_ context.Context, spec schema.TaskSpec) (schema.TaskResult, error) {
	if err := w.note("task " + spec.Step); err != nil {
		return schema.TaskResult{}, err
	}
	w.mu.Lock()
	answer, silent, open := w.on[spec.Type], w.silent[spec.Type], w.open[spec.Type]
	w.specs = append(w.specs, spec)
	w.mu.Unlock()
	if silent {
		return schema.TaskResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
	}
	if open {
		return schema.TaskResult{}, activity.ErrResultPending
	}
	if answer != nil {
		return answer(spec)
	}
	return succeeded(w.defaultOutput(spec.Type)), nil
}

func (w *world) defaultOutput(t schema.TaskType) any {
	switch t {
	case schema.TaskFactsCollect:
		return schema.Facts{CPUs: 2, MemoryBytes: 1 << 30}
	case schema.TaskNodeProbe:
		return schema.ProbeReport{Healthy: true}
	case schema.TaskWorkloadDrain:
		return schema.DrainResult{Stopped: []string{"job-1"}}
	}
	return schema.CordonResult{Cordoned: t == schema.TaskWorkloadCordon, Was: w.wasCordon}
}

func succeeded(output any) schema.TaskResult {
	raw, err := json.Marshal(output)
	if err != nil {
		panic(err)
	}
	return schema.TaskResult{Status: schema.TaskSucceeded, Output: raw}
}

// bed runs one operation of one world in a test environment with a clock that
// skips.
type bed struct {
	t     *testing.T
	env   *testsuite.TestWorkflowEnvironment
	world *world
	in    schema.OperationInput
	// answer and refusal are what submit said.
	answer  *schema.Operation
	refusal error
	// resolved is what each decision was answered.
	resolved []error
}

func setup(t *testing.T, a schema.Action, w *world) *bed {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	b := &bed{t: t, env: suite.NewTestWorkflowEnvironment(), world: w}
	b.in = schema.OperationInput{
		OperationID: "op-1", NodeID: testNode, Action: a, Actor: "alice", Reason: "RMA-4411",
		CorrelationID: "c-1", Host: "gpu-17",
	}
	b.env.SetTestTimeout(20 * time.Second)
	for _, e := range Registry() {
		b.env.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	b.env.RegisterActivity(&activities.Record{Records: w})
	b.env.RegisterActivity(&activities.Task{Tasks: w})
	b.env.RegisterActivity(&activities.Machine{Ledger: w, Providers: map[string]activities.Provider{"manual": w}})
	b.env.OnActivity(node.RunNodeTask, anything, anything).Return(w.task)
	b.env.RegisterDelayedCallback(b.submit, 0)
	return b
}

func (b *bed) submit() {
	b.env.UpdateWorkflow(schema.UpdateSubmit, b.in.OperationID, &testsuite.TestUpdateCallback{
		OnAccept: func() {},
		OnReject: func(err error) { b.refusal = err },
		OnComplete: func(v any, err error) {
			b.refusal = err
			if op, ok := v.(schema.Operation); ok && err == nil {
				b.answer = &op
			}
		},
	})
}

// decideAt hands over a decision after d of workflow time.
func (b *bed) decideAt(d time.Duration, decision schema.Decision) {
	b.env.RegisterDelayedCallback(func() { b.decide(decision, "because") }, d)
}

func (b *bed) decide(decision schema.Decision, reason string) {
	i := len(b.resolved)
	b.resolved = append(b.resolved, errUnanswered)
	b.env.UpdateWorkflow(schema.UpdateResolve, fmt.Sprintf("decision-%d", i), &testsuite.TestUpdateCallback{
		OnAccept:   func() {},
		OnReject:   func(err error) { b.resolved[i] = err },
		OnComplete: func(_ any, err error) { b.resolved[i] = err },
	}, schema.ResolveRequest{Decision: decision, Reason: reason, By: "bob"})
}

var errUnanswered = fmt.Errorf("not answered")

// run runs the operation to its end and returns its final state.
func (b *bed) run() schema.OperationStatus {
	b.t.Helper()
	name, ok := schema.WorkflowType(b.in.Action)
	require.True(b.t, ok)
	b.env.ExecuteWorkflow(name, b.in)
	require.True(b.t, b.env.IsWorkflowCompleted(), "the operation never ended")
	var st schema.OperationStatus
	err := b.env.GetWorkflowError()
	var cancelled *temporal.CanceledError
	if err != nil {
		require.ErrorAs(b.t, err, &cancelled)
		require.NoError(b.t, cancelled.Details(&st))
		return st
	}
	require.NoError(b.t, b.env.GetWorkflowResult(&st))
	return st
}

// status asks the running operation for its state.
func (b *bed) status() schema.OperationStatus {
	v, err := b.env.QueryWorkflow(schema.QueryStatus)
	require.NoError(b.t, err)
	var st schema.OperationStatus
	require.NoError(b.t, v.Get(&st))
	return st
}

// final is an activity's failure that no retry heals.
func final(k schema.Kind, message string) error {
	return temporal.NewNonRetryableApplicationError(message, string(k), nil)
}

func (b *bed) kindOfRefusal() schema.Kind { return kindOf(b.refusal) }
