package workflows

import (
	"bytes"
	"compress/gzip"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// recordTo names the release whose replay fixtures TestHistories writes:
// go test ./workflows -run TestHistories -record v0.2.0.
var recordTo = flag.String("record", "", "write the histories to testdata/replay/NAME")

var server temporaltest.Shared

func TestMain(m *testing.M) {
	flag.Parse()
	if at := os.Getenv(envStall); at != "" {
		stallingWorker(at)
	}
	server.Run(m)
}

// recording is one operation that runs against a real server, with the world's
// ports in memory.
type recording struct {
	name    string
	action  lifecycle.Action
	from    lifecycle.NodeState
	options lifecycle.Options
	// events is the largest history that is accepted. 0 means no limit.
	events  int
	prepare func(w *world)
	// drive acts on the operation while it runs.
	drive func(r *recorder)
}

// recorder drives one recording.
type recorder struct {
	*temporal.Client
	t     *testing.T
	world *world
	op    lifecycle.Operation
	name  string
}

func (r *recorder) until(s lifecycle.OperationState) lifecycle.Operation {
	r.t.Helper()
	var st lifecycle.OperationStatus
	harness.Eventually(r.t, string(s), func() bool {
		var err error
		st, err = r.Operations.Status(r.t.Context(), r.op.WorkflowID, r.op.RunID)
		return err == nil && st.Operation.Status == s
	})
	return st.Operation
}

func (r *recorder) decide(d lifecycle.Decision) {
	r.t.Helper()
	st, err := r.Operations.Status(r.t.Context(), r.op.WorkflowID, r.op.RunID)
	require.NoError(r.t, err)
	request := lifecycle.ResolveRequest{OperationID: r.op.OperationID, Decision: d, Reason: "because", By: "bob", Via: "api"}
	if stuck := st.Operation.Stuck; stuck != nil {
		request.Phase, request.StuckSince = stuck.Phase, &stuck.Since
	}
	_, err = r.Operations.Resolve(r.t.Context(), r.op.WorkflowID, request)
	require.NoError(r.t, err)
}

func (r *recorder) event(name lifecycle.AgentEventName, incarnation int64) {
	r.t.Helper()
	e := lifecycle.AgentEvent{Event: name, NodeID: testNode, Incarnation: incarnation, OperationID: r.op.OperationID, Step: string(task.WorkloadDrain)}
	r.world.announce(e)
	if err := r.NodeTasks.SignalAgent(r.t.Context(), r.op.WorkflowID, e); err != nil {
		// The run may have read what the event announces after the event before, and ended.
		st, again := r.Operations.Status(r.t.Context(), r.op.WorkflowID, r.op.RunID)
		require.NoError(r.t, again)
		require.True(r.t, st.Operation.Status.Ended(), "%v", err)
	}
}

// open keeps the history of the operation as it is now, still open.
func (r *recorder) open() {
	r.t.Helper()
	r.keep(r.name + "-open")
}

func (r *recorder) keep(name string) *historypb.History {
	r.t.Helper()
	return r.save(filepath.Join("testdata", "replay"), name)
}

// save reads the history and, with -record, writes it below a folder.
func (r *recorder) save(folder, name string) *historypb.History {
	r.t.Helper()
	h := &historypb.History{}
	events := r.SDK().GetWorkflowHistory(r.t.Context(), r.op.WorkflowID, r.op.RunID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		require.NoError(r.t, err)
		h.Events = append(h.Events, e)
	}
	if *recordTo == "" || name == "" {
		return h
	}
	raw, err := protojson.Marshal(h)
	require.NoError(r.t, err)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(raw)
	require.NoError(r.t, err)
	require.NoError(r.t, z.Close())
	dir := filepath.Join(folder, *recordTo)
	require.NoError(r.t, os.MkdirAll(dir, 0o755))
	require.NoError(r.t, os.WriteFile(filepath.Join(dir, name+".json.gz"), packed.Bytes(), 0o644))
	return h
}

// fails lets the first task of a type fail permanently.
func fails(t task.Type) func(*world) {
	return func(w *world) {
		failed := false
		w.on[t] = func(activities.TaskSpec) (task.Result, error) {
			if failed {
				return succeeded(w.defaultOutput(t)), nil
			}
			failed = true
			return task.Result{}, final(schema.KindTaskFailed, "no luck")
		}
	}
}

func blockedOnce(w *world) {
	tries := 0
	w.on[task.WorkloadDrain] = func(activities.TaskSpec) (task.Result, error) {
		if tries++; tries == 1 {
			return succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Reason: "checkpointing"}}}), nil
		}
		return succeeded(task.DrainResult{Stopped: []string{"job-1"}}), nil
	}
}

// parkThen parks, keeps the open history, and decides.
func parkThen(d lifecycle.Decision) func(*recorder) {
	return func(r *recorder) {
		r.until(lifecycle.OperationParked)
		r.open()
		r.decide(d)
	}
}

func enrollmentEvents(incarnation int64) func(*recorder) {
	return func(r *recorder) {
		r.event(lifecycle.EventBundleIssued, incarnation)
		r.event(lifecycle.EventTokenClaimed, incarnation)
		r.open()
		r.event(lifecycle.EventFirstPoll, incarnation)
	}
}

func recordings() []recording {
	const (
		active, retired = lifecycle.NodeActive, lifecycle.NodeRetired
		drain           = lifecycle.ActionDrain
	)
	openDrain := func(w *world) { w.open[task.WorkloadDrain] = true }
	return []recording{
		{name: "enroll", action: lifecycle.ActionEnroll, from: lifecycle.NodeRegistered, events: 37, drive: enrollmentEvents(1)},
		{name: "provision", action: lifecycle.ActionProvision, from: active, events: 38},
		{name: "quarantine", action: lifecycle.ActionQuarantine, from: active, events: 18},
		{name: "quarantine-silent", action: lifecycle.ActionQuarantine, from: lifecycle.NodeOffline, prepare: fails(task.WorkloadCordon)},
		{name: "release", action: lifecycle.ActionRelease, from: lifecycle.NodeQuarantined, events: 27},
		{name: "drain", action: drain, from: active, events: 27},
		{name: "cordon-only", action: drain, from: active, options: lifecycle.Options{CordonOnly: true}, events: 18},
		{name: "uncordon", action: lifecycle.ActionUncordon, from: active, events: 18},
		{name: "retire", action: lifecycle.ActionRetire, from: active, events: 18},
		{name: "retire-drain", action: lifecycle.ActionRetire, from: active, options: lifecycle.Options{Drain: true}, events: 27},
		{name: "reactivate", action: lifecycle.ActionReactivate, from: retired, events: 27},
		{name: "terminate", action: lifecycle.ActionTerminate, from: active, events: 17, prepare: func(w *world) { w.creates = true }},
		{name: "remove", action: lifecycle.ActionRemove, from: retired, events: 19},
		{name: "reissue", action: lifecycle.ActionReissueEnrollment, from: active, events: 37, drive: enrollmentEvents(2)},

		{name: "refused", action: drain, from: retired},
		{name: "drain-retry", action: drain, from: active, prepare: fails(task.WorkloadCordon), drive: parkThen(lifecycle.DecisionRetry)},
		{name: "drain-skip", action: drain, from: active, prepare: fails(task.WorkloadCordon), drive: parkThen(lifecycle.DecisionSkip)},
		{name: "drain-extend", action: drain, from: active, prepare: blockedOnce, drive: parkThen(lifecycle.DecisionExtend)},
		{name: "drain-force", action: drain, from: active, prepare: blockedOnce, drive: parkThen(lifecycle.DecisionForce)},
		{name: "drain-cancel", action: drain, from: active, prepare: openDrain, drive: func(r *recorder) {
			r.untilCall("task workload.drain")
			r.decide(lifecycle.DecisionCancel)
		}},
		{name: "drain-undo-parked", action: drain, from: active, prepare: func(w *world) {
			openDrain(w)
			fails(task.WorkloadUncordon)(w)
		}, drive: func(r *recorder) {
			r.untilCall("task workload.drain")
			r.decide(lifecycle.DecisionCancel)
			parkThen(lifecycle.DecisionRetry)(r)
		}},
		{name: "drain-lost", action: drain, from: active, prepare: func(w *world) { lostOnce(w, drained) }, drive: func(r *recorder) {
			r.until(lifecycle.OperationParked)
			r.event(lifecycle.EventTaskReturned, 1)
		}},
		{name: "provision-cancel", action: lifecycle.ActionProvision, from: active, prepare: fails(task.FactsCollect), drive: parkThen(lifecycle.DecisionCancel)},
		{name: "reactivate-force", action: lifecycle.ActionReactivate, from: retired, prepare: func(w *world) {
			w.on[task.NodeProbe] = func(activities.TaskSpec) (task.Result, error) {
				return succeeded(inventory.ProbeReport{Checks: []inventory.ProbeCheck{{Name: "disk", Detail: "3 MiB free"}}}), nil
			}
		}, drive: parkThen(lifecycle.DecisionForce)},
		{name: "remove-force", action: lifecycle.ActionRemove, from: retired, prepare: func(w *world) {
			w.fail["release"] = schema.NewError(schema.KindInvalidRequest, "the provider refuses")
		}, drive: parkThen(lifecycle.DecisionForce)},
		{name: "reissue-cancel", action: lifecycle.ActionReissueEnrollment, from: active, drive: func(r *recorder) {
			r.decide(lifecycle.DecisionCancel)
		}},
	}
}

func (r *recorder) untilCall(call string) {
	r.t.Helper()
	harness.Eventually(r.t, call, func() bool {
		return slices.Contains(r.world.story(), call)
	})
}

// TestHistories runs every kind of operation on a real server, bounds the size of
// its history, and writes the replay fixtures with -record.
func TestHistories(t *testing.T) {
	c, err := temporal.Dial(temporal.Config{Address: server.Address(t), Namespace: "t-" + schema.NewID()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.Installation.Setup(t.Context()))
	for _, rec := range recordings() {
		t.Run(rec.name, func(t *testing.T) { //nolint:paralleltest // one worker on one task queue at a time
			w := newWorld(rec.from)
			if rec.prepare != nil {
				rec.prepare(w)
			}
			r := &recorder{Client: c, t: t, world: w, name: rec.name}
			defer r.startWorker()()
			r.op, _ = c.Operations.Submit(t.Context(), lifecycle.OperationInput{
				OperationID: schema.NewID(), NodeID: testNode, Host: "gpu-17", Action: rec.action, Actor: "alice",
				Reason: "RMA-4411", CorrelationID: "c-1", Options: rec.options,
			})
			r.op.WorkflowID = lifecycle.WorkflowID(rec.action, "gpu-17", testNode)
			if rec.drive != nil {
				rec.drive(r)
			}
			st, err := c.Operations.Result(t.Context(), r.op.WorkflowID, r.op.RunID)
			require.NoError(t, err)
			require.True(t, st.Operation.Status.Ended())
			h := r.keep(rec.name)
			t.Logf("%s: %d events, %s", rec.name, len(h.GetEvents()), st.Operation.Status)
			if rec.events > 0 {
				require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
				require.LessOrEqual(t, len(h.GetEvents()), rec.events, "the history has too many events")
			}
			require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, h))
		})
	}
}

// startWorker runs a worker with the world's ports and returns its stop.
func (r *recorder) startWorker() (stop func()) {
	w := r.world.worker(r.Client)
	require.NoError(r.t, w.Start())
	return w.Stop
}

// worker returns a worker with the world's ports.
func (w *world) worker(c *temporal.Client) worker.Worker {
	out := worker.New(c.SDK(), lifecycle.TaskQueue, worker.Options{})
	for _, e := range Registry() {
		out.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	out.RegisterActivity(&activities.Record{Records: w})
	tasks := &activities.Task{Records: w, Tasks: w, NewTasks: activities.TaskSigner{Signer: w}}
	for name, fn := range map[string]any{"VoidTasks": tasks.VoidTasks, "VoidStep": tasks.VoidStep, "VoidUndispatched": tasks.VoidUndispatched,
		"EnqueueNodeTask": tasks.EnqueueNodeTask, "ReadFirstTask": tasks.ReadFirstTask, "RunNodeTask": w.runTask, "ReadTaskResult": w.readResult} {
		out.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: name})
	}
	out.RegisterActivity(&activities.Repair{Repairs: w, Providers: w.sources()})
	out.RegisterActivity(&activities.Machine{Ledger: w, Providers: w.sources()})
	return out
}
