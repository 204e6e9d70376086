package workflows

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
)

const testNode = "0198c0de-0000-7000-8000-000000000001"

// world holds the ports of a workflow test in memory. It records every call in
// order, and a simulated node runs the tasks. The store itself is tested on Postgres.
type world struct {
	// cordoned and leftCordon are those of the claim.
	cordoned, leftCordon bool
	mu                   sync.Mutex
	calls                []string
	// fail lets the named call fail with an error, every time.
	fail map[string]error
	// on runs a node task; unset types succeed.
	on map[task.Type]func(spec activities.TaskSpec) (task.Result, error)
	// silent lets tasks of these types run into their time limit, open leaves
	// them without a result.
	silent    map[task.Type]bool
	open      map[task.Type]bool
	prior     lifecycle.NodeState
	claimed   lifecycle.NodeState
	started   time.Time
	finished  *activities.Finish
	finisher  string // the actor of the end
	parks     []lifecycle.Stuck
	parkIDs   []string
	decisions []lifecycle.Decision
	ledger    []activities.Resource // the open entries
	facts     string                // the step of the recorded facts
	instance  *lifecycle.Instance   // of the claim, if it is set
	onEnsure  func()                // called while the provider creates the machine
	// creates is set if the provider creates machines, deleting while it deletes one, and deleted
	// after a deletion.
	creates, deleting, deleted bool
	console                    string
	onVoid                     func()              // called while the tasks are voided
	onPark                     func(parkID string) // called before a park is recorded
	onDecide                   func()              // called before a decision is recorded
	// steps are the numbers of the advances, decided the IDs of the decisions.
	steps    []int64
	clocks   []int64 // of the tasks that were prepared
	decided  []string
	progress activities.Enrollment
	// heartbeat is the age of the agent's last one.
	heartbeat time.Duration
	sku       inventory.SKU
	gpus      int
	wasCordon bool
	specs     []activities.TaskSpec
	// enqueued are the short names of the steps whose tasks were enqueued, rows the whole
	// names. stall blocks a step's enqueue. voided are the steps whose tasks were voided.
	enqueued []string
	rows     []string
	voided   map[string]bool
	// began is set when the node has the task of a destructive phase.
	began bool
	stall func(step string)
	// forge ends the activity of a task with an error or nil, and stores no result.
	forge func(spec activities.TaskSpec) (bool, error)
	// outcomes are the stored results by the whole name of the step.
	outcomes map[string]storedOutcome
	// phase is that of the newest advance, document the status that was written last.
	phase    string
	document *lifecycle.OperationStatus
	repairs  repairWorld
}

func newWorld(prior lifecycle.NodeState) *world {
	return &world{
		fail: map[string]error{}, on: map[task.Type]func(activities.TaskSpec) (task.Result, error){},
		silent: map[task.Type]bool{}, open: map[task.Type]bool{}, prior: prior, outcomes: map[string]storedOutcome{},
		voided: map[string]bool{},
		ledger: []activities.Resource{{ResourceID: "r1", Kind: "instance", Provider: "manual"}},
		sku:    inventory.SKU{Name: "cpu-dev", MinCPUs: 1, Active: true},
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

// failWith lets the named call fail from now on.
func (w *world) failWith(call string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail[call] = err
}

func (w *world) heal(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.fail, call)
}

func (w *world) Claim(_ context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	if err := w.note("claim"); err != nil {
		return activities.Claim{}, err
	}
	if err := lifecycle.CheckWorkflowID(r.Action, "gpu-17", r.NodeID, r.WorkflowID); err != nil {
		return activities.Claim{}, err
	}
	plan, err := lifecycle.CheckStart(r.Action, w.prior)
	if err != nil {
		return activities.Claim{}, err
	}
	plan = plan.On(machines.Info{Creates: w.creates})
	w.started = time.Now().UTC().Truncate(time.Microsecond)
	plan.Begin(&r.Document.Operation, w.started)
	w.document = r.Document
	w.claimed = w.prior
	if plan.Enter != "" {
		w.claimed = plan.Enter
	}
	fence := activities.Fence{NodeID: r.NodeID, OperationID: r.OperationID, OpSeq: 7, Actor: r.Actor}
	if !plan.Holds {
		fence.OpSeq = 0
	}
	return activities.Claim{
		Fence:     fence,
		StartedAt: w.started, Prior: w.prior, State: w.claimed, Host: "gpu-17", SKU: w.sku, GPUsTotal: w.gpus,
		Provider: "manual", Creates: w.creates, Incarnation: 1, Cordoned: w.cordoned, LeftCordon: w.leftCordon,
		Instance: w.instanceFor(r.Action),
	}, nil
}

// instanceFor is the instance of a claim: a new one, or the one that the ledger has.
func (w *world) instanceFor(a lifecycle.Action) lifecycle.Instance {
	if w.instance != nil {
		return *w.instance
	}
	if a == lifecycle.ActionTerminate {
		return lifecycle.Instance{InstanceID: "r1", Provider: "manual", State: lifecycle.InstanceRunning}
	}
	return lifecycle.Instance{InstanceID: "i-1", Provider: "manual", State: lifecycle.InstancePending}
}

func (w *world) Advance(_ context.Context, _ activities.Fence, _ string, a activities.Advance) error {
	call := "advance " + a.Phase
	switch {
	case a.Continued:
		call = "confirm " + a.Phase
	case a.Stuck != nil:
		call = "park " + a.Phase
		if w.onPark != nil {
			w.onPark(a.ParkID)
		}
	case a.Decision != nil:
		call = "decide " + string(a.Decision.Decision)
		if w.onDecide != nil {
			w.onDecide()
		}
	case a.Instance != "":
		call = "instance " + string(a.Instance)
	case a.FactsTask != "":
		call = "facts"
	}
	w.mu.Lock()
	repeated := w.fail[call] == nil && slices.Contains(w.steps, a.Step)
	w.mu.Unlock()
	if repeated {
		return nil
	}
	if w.afterUndo(a) {
		return errUndoBegan()
	}
	if err := w.note(call); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.document = a.Document
	if a.FactsTask != "" {
		w.facts = a.FactsTask
	}
	w.steps = append(w.steps, a.Step)
	if a.Stuck != nil && !a.Continued {
		w.parks = append(w.parks, *a.Stuck)
		w.parkIDs = append(w.parkIDs, a.ParkID)
	}
	if a.Decision != nil {
		w.decisions = append(w.decisions, a.Decision.Decision)
		w.decided = append(w.decided, a.Decision.ID)
	}
	return nil
}

// afterUndo stores the phase of an advance, and reports whether the store refuses it. A late
// advance changes nothing.
func (w *world) afterUndo(a activities.Advance) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.steps) > 0 && a.Step <= slices.Max(w.steps):
	case !lifecycle.AfterUndo(a.Phase, w.phase):
		w.phase = a.Phase
	case !a.Cancels():
		return true
	}
	return false
}

func errUndoBegan() error {
	return schema.NewError(schema.KindFenced, "the undo has begun").WithReason(lifecycle.ReasonUndoBegan)
}

func (w *world) Finish(_ context.Context, by activities.Fence, _ string, f activities.Finish) error {
	if err := w.note("finish " + string(f.Status)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if lifecycle.IsUndo(w.phase) && f.Status == lifecycle.OperationCompleted {
		return errUndoBegan()
	}
	w.document = f.Document
	f.Document = nil // checked apart
	w.finished, w.finisher = &f, by.Actor
	return nil
}

func (w *world) Enrollment(context.Context, string) (activities.Enrollment, error) {
	err := w.note("read enrollment")
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.progress, err
}

func (w *world) Registration(context.Context, string) (activities.Registration, error) {
	return activities.Registration{SKU: w.sku, GPUsTotal: w.gpus}, w.note("registration?")
}

func (w *world) HeartbeatAge(context.Context, string) (time.Duration, error) {
	return w.heartbeat, w.note("heartbeat?")
}

func (w *world) Void(context.Context, activities.Fence) error {
	if w.onVoid != nil {
		w.onVoid()
	}
	err := w.note("void")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, step := range w.rows {
		if err == nil && !w.endedLocked(step) {
			w.voided[step] = true
		}
	}
	return err
}

// VoidUndispatched simulates the dispatch: a node that is not silent has the task.
func (w *world) VoidUndispatched(_ context.Context, _ activities.Fence, step string) (bool, error) {
	err := w.note("void undispatched")
	w.mu.Lock()
	defer w.mu.Unlock()
	return err == nil && !w.began && slices.Contains(w.rows, step), err
}

func (w *world) Plan(_ context.Context, _ activities.Fence, r activities.Resource) (activities.Resource, error) {
	err := w.note("plan")
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(w.ledger, func(known activities.Resource) bool { return known.ResourceID == r.ResourceID }); i >= 0 {
		return w.ledger[i], err
	}
	if err == nil {
		w.ledger = append(w.ledger, r)
	}
	return r, err
}

func (w *world) Created(_ context.Context, _ activities.Fence, resourceID, _ string) error {
	err := w.note("created")
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.ledger {
		if err == nil && w.ledger[i].ResourceID == resourceID {
			w.ledger[i].State = activities.ResourceCreated
		}
	}
	return err
}

func (w *world) Released(_ context.Context, _ activities.Fence, resourceID string) error {
	err := w.note("released")
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.ledger = slices.DeleteFunc(w.ledger, func(r activities.Resource) bool { return r.ResourceID == resourceID })
	}
	return err
}

func (w *world) Open(context.Context, activities.Fence) ([]activities.Resource, error) {
	err := w.note("ledger")
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ledger), err
}

// worldProvider is the provider of a world.
type worldProvider struct{ *world }

// sources are the providers of the world.
func (w *world) sources() map[string]activities.Source {
	return map[string]activities.Source{"manual": {Info: machines.Info{Name: "manual", Creates: w.creates}, Provider: worldProvider{w}}}
}

func (p worldProvider) Create(_ context.Context, s machines.Spec, _ activities.BootData) (machines.Machine, error) {
	if p.onEnsure != nil {
		p.onEnsure()
	}
	p.deleted = false
	return machines.Machine{Ref: machines.Ref{InstanceID: s.InstanceID, ExternalID: "gpu-17"}, Phase: machines.Running}, p.note("ensure")
}

func (p worldProvider) Describe(_ context.Context, r machines.Ref) (machines.Machine, error) {
	if p.deleted {
		return machines.Machine{}, machines.Errorf(machines.ReasonMissing, "no machine")
	}
	phase := machines.Running
	if p.repairs.off {
		phase = machines.Stopped
	}
	if p.deleting {
		phase = machines.Deleting
	}
	return machines.Machine{Ref: r, Phase: phase}, p.note("describe")
}

func (p worldProvider) Power(_ context.Context, _ machines.Ref, change machines.Power) error {
	if p.repairs.onPower != nil {
		p.repairs.onPower(change)
	}
	return p.note("power " + string(change))
}

func (p worldProvider) Console(context.Context, machines.Ref) ([]byte, error) {
	return []byte(p.console), nil
}

func (p worldProvider) Delete(context.Context, machines.Ref) error {
	err := p.note("release")
	p.deleted = p.deleted || err == nil && !p.deleting
	return err
}

func (p worldProvider) List(context.Context) ([]machines.Machine, error) { return nil, nil }

// Prepare and Enqueue simulate the queue of node tasks.
func (w *world) Prepare(_ context.Context, spec activities.TaskSpec, _ task.Owner) (activities.TaskRow, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clocks = append(w.clocks, spec.Clock)
	if lifecycle.AfterUndo(spec.Phase, w.phase) {
		return activities.TaskRow{}, errUndoBegan()
	}
	return activities.TaskRow{}, w.fail["prepare "+shortStep(spec.Step)]
}

// shortStep is the name of a step without what makes it unique: the decision that repeats
// it, and the beginning of the undo.
func shortStep(step string) string {
	short, _, _ := strings.Cut(step, "-")
	return strings.TrimSuffix(short, "#1")
}

// First returns the first task of a type that was enqueued.
func (w *world) First(_ context.Context, _ activities.Fence, t task.Type) (activities.TaskRow, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.rows, func(step string) bool { return step == string(t) || strings.HasPrefix(step, string(t)+"#") })
	if i < 0 {
		return activities.TaskRow{}, schema.NewError(schema.KindNotFound, "no %s task", t)
	}
	row := activities.TaskRow{Type: t, Stored: true, Status: task.Pending}
	if stored, ok := w.outcomes[w.rows[i]]; ok && stored.err == nil && !stored.open && !stored.missing {
		row.Status, row.Result = task.Succeeded, &stored.result
	}
	return row, w.fail["first"]
}

// Find returns the status of a task; readResult replaces the caller that needs its result.
func (w *world) Find(_ context.Context, spec activities.TaskSpec) (activities.TaskRow, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	row := activities.TaskRow{Status: task.Pending}
	if w.voided[spec.Step] {
		row.Status = task.Canceled
	} else if stored, ok := w.outcomes[spec.Step]; ok {
		row.Status = task.Succeeded
		if e := activities.Typed(stored.err); e != nil && e.Reason == lifecycle.ReasonTaskLost {
			row.Status = task.Lost
		}
	}
	return row, w.fail["void"]
}

// Enqueue records the step, or fails or stalls before.
func (w *world) Enqueue(_ context.Context, spec activities.TaskSpec, _ task.Owner, _ activities.TaskRow, _ []byte) error {
	step := shortStep(spec.Step)
	if w.stall != nil {
		w.stall(step)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fail["enqueue "+step]; err != nil {
		w.calls = append(w.calls, "enqueue "+step+"!")
		return err
	}
	w.enqueued, w.rows = append(w.enqueued, step), append(w.rows, spec.Step)
	return nil
}

func (w *world) Sign(_ context.Context, payload []byte) ([]byte, error) { return payload, nil }

// storedOutcome is a result in the database: of a task that succeeded, or the failure.
type storedOutcome struct {
	result task.Result
	err    error
	// open is set for a task that has not ended, missing for one that the database lost.
	open, missing bool
}

// runTask simulates the activity that waits for a task: the result that the node reports
// is stored, and Temporal receives a reference.
func (w *world) runTask(ctx context.Context, spec activities.TaskSpec) (task.Reference, error) {
	if w.forge != nil {
		if forged, err := w.forge(spec); forged {
			return task.Reference{}, err
		}
	}
	if w.ended(spec.Step) {
		return task.Reference{}, nil
	}
	r, err := w.task(ctx, spec)
	if err == nil && r.Status != task.Succeeded {
		err = activities.Failure(r.Failure(), true)
	}
	if err != nil && (activities.Typed(err) == nil || activities.Typed(err).Kind.Info().Retry) { // the activity's own failure
		return task.Reference{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes[spec.Step] = storedOutcome{result: r, err: err}
	return task.Reference{TaskID: lifecycle.TaskID(spec.OperationID, spec.Step), Status: r.Status}, nil
}

// ended reports whether the step has a task that ended: the node does not run it again. A
// task that was lost may return.
func (w *world) ended(step string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.endedLocked(step)
}

func (w *world) endedLocked(step string) bool {
	stored, ok := w.outcomes[step]
	if e := activities.Typed(stored.err); e != nil && e.Reason == lifecycle.ReasonTaskLost {
		return false
	}
	return ok && !stored.open && !stored.missing
}

func (w *world) readResult(_ context.Context, spec activities.TaskSpec) (task.Outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, ok := w.outcomes[spec.Step]
	if !ok || found.err != nil || found.open || found.missing {
		return task.Outcome{Open: found.open}, found.err
	}
	output, err := found.result.Brief(spec.Type)
	return task.Outcome{Done: true, Output: output}, activities.Fail(err)
}

// announce stores the progress of an enrollment that an event announces.
func (w *world) announce(e lifecycle.AgentEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.progress
	switch {
	case e.Event == lifecycle.EventNodeRemoved:
		p.Removed = true
	case e.Event == lifecycle.EventTaskReturned || e.NodeID != testNode || e.Incarnation < max(p.Incarnation, 1):
	case e.Event == lifecycle.EventBundleIssued:
		p.BundleIssued, p.ReissueIssued = true, true
	default:
		*p = activities.Enrollment{Incarnation: e.Incarnation, BundleIssued: true, TokenClaimed: true,
			Polled: e.Event == lifecycle.EventFirstPoll, Removed: p.Removed}
	}
}

// report stores what an event announces and signals it.
func (b *bed) report(e lifecycle.AgentEvent) {
	b.world.announce(e)
	b.env.SignalWorkflow(lifecycle.SignalAgent, e)
}

// task simulates the node.
func (w *world) task(_ context.Context, spec activities.TaskSpec) (task.Result, error) {
	if err := w.note("task " + shortStep(spec.Step)); err != nil {
		return task.Result{}, err
	}
	w.mu.Lock()
	answer, silent, open := w.on[spec.Type], w.silent[spec.Type], w.open[spec.Type]
	w.specs = append(w.specs, spec)
	w.mu.Unlock()
	if silent {
		return task.Result{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
	}
	if open {
		return task.Result{}, activity.ErrResultPending
	}
	if answer != nil {
		return answer(spec)
	}
	return succeeded(w.defaultOutput(spec.Type)), nil
}

func (w *world) defaultOutput(t task.Type) any {
	switch t {
	case task.FactsCollect:
		return inventory.Facts{CPUs: 2, MemoryBytes: 1 << 30}
	case task.NodeProbe:
		return inventory.ProbeReport{Healthy: true}
	case task.NodeReboot:
		w.boots("boot-2")
		return nil
	case task.GPUReset:
		return task.ResetResult{Reset: []string{"GPU-1"}}
	case task.NodeVerify:
		return task.VerifyResult{OK: true, BootID: "boot-2", Tests: []recovery.Test{{Name: "gpus", OK: true, Detail: "8"}}}
	case task.AgentUpgrade:
		return task.UpgradeResult{Version: "v2.0.0"}
	case task.WorkloadDrain:
		return task.DrainResult{Stopped: []string{"job-1"}}
	}
	return task.CordonResult{Cordoned: t == task.WorkloadCordon, Was: w.wasCordon}
}

func succeeded(output any) task.Result {
	raw, err := json.Marshal(output)
	if err != nil {
		panic(err)
	}
	return task.Result{Status: task.Succeeded, Output: raw}
}

// bed runs one operation of one world in a test environment with a clock that
// skips.
type bed struct {
	t     *testing.T
	env   *testsuite.TestWorkflowEnvironment
	world *world
	in    lifecycle.OperationInput
	// answer and refusal are what submit returned.
	answer  *lifecycle.Operation
	refusal error
	// mu is held to write the two below: an activity may send a decision while the workflow
	// answers one.
	mu sync.Mutex
	// resolved is what each decision was answered.
	resolved []error
	// answers are the statuses after the decisions.
	answers []lifecycle.OperationStatus
}

func setup(t *testing.T, a lifecycle.Action, w *world) *bed {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	b := &bed{t: t, env: suite.NewTestWorkflowEnvironment(), world: w}
	b.in = lifecycle.OperationInput{
		OperationID: "op-1", NodeID: testNode, Action: a, Actor: "alice", Reason: "RMA-4411",
		CorrelationID: "c-1", Host: "gpu-17",
	}
	b.env.SetTestTimeout(harness.Timeout)
	b.env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: harness.Timeout}) // a busy machine is no deadlock
	b.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: lifecycle.WorkflowID(a, "gpu-17", testNode)})
	for _, e := range Registry() {
		b.env.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	b.env.RegisterActivity(&activities.Record{Records: w})
	b.env.RegisterActivity(&activities.Task{Records: w, Tasks: w, NewTasks: activities.TaskSigner{Signer: w}})
	b.env.RegisterActivity(&activities.Repair{Repairs: w, Providers: w.sources()})
	b.env.RegisterActivity(&activities.Machine{Ledger: w, Providers: w.sources()})
	b.env.OnActivity(node.RunNodeTask, anything, anything).Return(w.runTask)
	b.env.OnActivity(node.ReadTaskResult, anything, anything).Return(w.readResult)
	b.env.RegisterDelayedCallback(b.submit, 0)
	return b
}

func (b *bed) submit() {
	b.env.UpdateWorkflow(lifecycle.UpdateSubmit, b.in.OperationID, &testsuite.TestUpdateCallback{
		OnAccept: func() {},
		OnReject: func(err error) { b.refusal = err },
		OnComplete: func(v any, err error) {
			b.refusal = err
			if op, ok := v.(lifecycle.Operation); ok && err == nil {
				b.answer = &op
			}
		},
	})
}

// decideAt sends a decision after d of workflow time.
func (b *bed) decideAt(d time.Duration, decision lifecycle.Decision) {
	b.env.RegisterDelayedCallback(func() { b.decide(decision, "because") }, d)
}

func (b *bed) decide(decision lifecycle.Decision, reason string) {
	b.resolve(lifecycle.ResolveRequest{OperationID: b.in.OperationID, Decision: decision, Reason: reason, By: "bob", Via: "api"})
}

// resolve sends a decision as it is.
func (b *bed) resolve(r lifecycle.ResolveRequest) {
	b.mu.Lock()
	i := len(b.resolved)
	b.resolved = append(b.resolved, errUnanswered)
	b.mu.Unlock()
	b.env.UpdateWorkflow(lifecycle.UpdateResolve, fmt.Sprintf("decision-%d", i), &testsuite.TestUpdateCallback{
		OnAccept:   func() {},
		OnReject:   func(err error) { b.answered(i, nil, err) },
		OnComplete: func(v any, err error) { b.answered(i, v, err) },
	}, r)
}

// answered keeps the answer to decision i.
func (b *bed) answered(i int, v any, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resolved[i] = err
	if done, ok := v.(lifecycle.Resolution); ok {
		b.answers = append(b.answers, done.OperationStatus)
	}
}

var errUnanswered = fmt.Errorf("not answered")

// run runs the operation to its end and returns its final state.
func (b *bed) run() lifecycle.OperationStatus {
	b.t.Helper()
	plan, ok := lifecycle.PlanOf(b.in.Action, b.in.Options)
	require.True(b.t, ok)
	b.env.ExecuteWorkflow(plan.Workflow, b.in)
	require.True(b.t, b.env.IsWorkflowCompleted(), "the operation never ended")
	b.requireListed()
	var st lifecycle.OperationStatus
	err := b.env.GetWorkflowError()
	var canceled *temporal.CanceledError
	if err != nil {
		require.ErrorAs(b.t, err, &canceled)
		require.NoError(b.t, canceled.Details(&st))
		return st
	}
	require.NoError(b.t, b.env.GetWorkflowResult(&st))
	return st
}

// requireListed checks that docs/states.md lists the reason of every park.
func (b *bed) requireListed() {
	b.t.Helper()
	for _, park := range b.world.parks {
		require.True(b.t, slices.ContainsFunc(lifecycle.ParkReasons(), func(r lifecycle.ParkReason) bool { return r.Reason == park.Reason }),
			"park reason %s is not in lifecycle.ParkReasons", park.Reason)
	}
}

// status asks the running operation for its state.
func (b *bed) status() lifecycle.OperationStatus {
	v, err := b.env.QueryWorkflow(lifecycle.QueryStatus)
	require.NoError(b.t, err)
	var st lifecycle.OperationStatus
	require.NoError(b.t, v.Get(&st))
	return st
}

// final is an activity's failure that no retry repairs.
func final(k schema.Kind, message string) error {
	return temporal.NewNonRetryableApplicationError(message, string(k), nil)
}

func (b *bed) kindOfRefusal() schema.Kind { return kindOf(b.refusal) }
