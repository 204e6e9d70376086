package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/testkit/storetest"
	"github.com/gpuaas/gpuaas/workflows"
)

// shift is a sequence of operations on one node, one workflow after the other.
type shift struct {
	*shiftWorld
	r      *rand.Rand // of the main loop
	nodeID string
	env    *testsuite.TestWorkflowEnvironment
	runs   int
	// events are what happens later, also in the runs to come.
	events []*event
	// waits are the activities that wait for a task, by their IDs.
	waits map[string]waiting
	// canceled are the activities that the workflow canceled; a server does not try them again.
	canceled map[string]bool
	op       *current
	err      error // the first violated guarantee
}

// event happens once at its time.
type event struct {
	at   time.Time
	do   func()
	done bool
}

// waiting is one wait of an activity for a task.
type waiting struct {
	token []byte
	runID string
	n     int
}

// current is the operation that runs.
type current struct {
	in       lifecycle.OperationInput
	plan     lifecycle.Plan
	refusal  error
	answered bool
	decided  []*answer
	// begun counts how often the node began a destructive task, resumed how often a person
	// had one dispatched again.
	begun, resumed int
	followed       int // options that were followed after the storm
	disturbed      bool
	// lateBundle is set if a token was issued after the record of the operation's end: the
	// node then has the state of the next enrollment.
	lateBundle bool
}

// answer is the response to a decision.
type answer struct {
	request  lifecycle.ResolveRequest
	done     bool
	accepted bool
	err      error
}

// The ends of a run that the workflow does not know.
type (
	terminated struct{}
	stranded   struct{ why string }
)

func newShift(seed uint64) *shift {
	start := time.Date(2041, 3, 1, 0, 0, 0, 0, time.UTC)
	s := &shift{shiftWorld: newShiftWorld(seed, start), waits: map[string]waiting{}, canceled: map[string]bool{}}
	s.r = s.random("shift")
	s.enqueued, s.restarted = s.offer, s.restart
	state := lifecycle.NodeRegistered
	if s.r.IntN(10) < 7 {
		state = lifecycle.NodeActive
	}
	s.nodeID = s.Register("gpu-17", provider, state).ID
	s.logf("seed %d: node is %s", seed, state)
	for p, outages := range s.outages {
		for _, o := range outages {
			s.logf("outage of the %s from %s to %s", p, o.from.Sub(start).Round(time.Second), o.to.Sub(start).Round(time.Second))
		}
	}
	return s
}

// run runs the shift: operations during the storm, then the removal of the node.
func (s *shift) run() error {
	for range 1 + s.r.IntN(4) {
		s.between()
		a, o := s.choose()
		if err := s.operate(a, o); err != nil {
			return err
		}
	}
	return s.decommission()
}

// between lets time pass and changes the node between two operations.
func (s *shift) between() {
	at := s.now().Add(upToLog(s.r, 3*time.Hour))
	s.clock = func() time.Time { return at }
	s.Change(s.nodeID, func(n *storetest.Node) {
		if n.State == lifecycle.NodeActive && s.r.IntN(5) == 0 {
			n.State = lifecycle.NodeOffline
		}
		if n.Instance == lifecycle.InstanceRunning && s.r.IntN(3) == 0 {
			n.Workloads = []string{"job-1"}
		}
	})
	if s.Node(s.nodeID).State.Enrolled() && s.r.IntN(3) == 0 {
		s.fail()
	}
}

// choose returns an action, mostly one that may start.
func (s *shift) choose() (lifecycle.Action, lifecycle.Options) {
	possible := lifecycle.ActionsIn(s.Node(s.nodeID).State)
	if slices.Contains(possible, lifecycle.ActionRecover) && s.unhealthy().Checker != "" && s.r.IntN(2) == 0 {
		return lifecycle.ActionRecover, lifecycle.Options{Recovery: s.repair()}
	}
	if s.r.IntN(12) == 0 || len(possible) == 0 {
		for _, p := range lifecycle.Operations() {
			possible = append(possible, p.Action)
		}
	}
	a, o := possible[s.r.IntN(len(possible))], lifecycle.Options{}
	switch {
	case a == lifecycle.ActionDrain:
		o.CordonOnly = s.r.IntN(4) == 0
	case a == lifecycle.ActionRetire:
		o.Drain = s.r.IntN(2) == 0
	case a == lifecycle.ActionRecover:
		o.Recovery = s.repair()
	}
	return a, o
}

// operate runs one operation to its end and checks it.
func (s *shift) operate(a lifecycle.Action, o lifecycle.Options) error {
	plan, _ := lifecycle.PlanOf(a, o)
	id := uuid.NewSHA1(uuid.UUID{}, fmt.Append(nil, s.seed, s.runs)).String()
	s.op = &current{plan: plan, in: lifecycle.OperationInput{OperationID: id, NodeID: s.nodeID, Action: a, Actor: "alice",
		Reason: "RMA-4411", CorrelationID: "c-1", Host: "gpu-17", Options: o}}
	before := s.Node(s.nodeID)
	s.logf("== %s %+v on a node that is %s", a, o, before.State)
	s.hit("operation " + string(a))
	var carried *workflows.Carried
	for first := true; ; first = false {
		s.newEnv(first)
		err := s.execute(carried)
		var again *workflow.ContinueAsNewError
		switch {
		case s.err != nil:
			return s.err
		case errors.As(err, &again):
			s.hit("continued as new")
			s.logf("continues as a new run")
			carried = &workflows.Carried{}
			if err := decode(again.Input, &s.op.in, carried); err != nil {
				return err
			}
			continue
		case errors.As(err, new(terminatedError)):
			s.recover()
			return s.checkNode()
		}
		return s.check(err, before)
	}
}

func decode(input *commonpb.Payloads, to ...any) error {
	return converter.GetDefaultDataConverter().FromPayloads(input, to...)
}

// terminatedError is the end of a run that someone terminated.
type terminatedError struct{}

func (terminatedError) Error() string { return "terminated" }

// execute runs a run of the workflow to its end.
func (s *shift) execute(carried *workflows.Carried) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case terminated:
			err = terminatedError{}
		case stranded:
			s.err = errors.New(r.why)
		default:
			s.err = fmt.Errorf("the run does not end: %v", r)
		}
		at := s.env.Now()
		s.mu.Lock()
		s.clock = func() time.Time { return at }
		s.mu.Unlock()
	}()
	s.env.ExecuteWorkflow(s.op.plan.Workflow, s.op.in, carried)
	if !s.env.IsWorkflowCompleted() {
		s.err = errors.New("the workflow did not complete")
	}
	return s.env.GetWorkflowError()
}

// newEnv prepares the environment of a run.
func (s *shift) newEnv(first bool) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env, at := suite.NewTestWorkflowEnvironment(), s.now()
	env.SetStartTime(at)
	env.SetTestTimeout(20 * time.Second)
	env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: time.Minute, Interceptors: []interceptor.WorkerInterceptor{&waitInterceptor{s: s}}})
	env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: lifecycle.WorkflowID(s.op.in.Action, "gpu-17", s.nodeID)})
	for _, e := range workflows.Registry() {
		env.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	env.RegisterActivity(&activities.Record{Records: s})
	env.RegisterActivity(&activities.Task{Records: s, Tasks: s, NewTasks: activities.TaskSigner{Signer: s}})
	sources := map[string]activities.Source{provider: {Info: machines.Info{Name: provider, Creates: true}, Provider: shiftProvider{s.shiftWorld}}}
	env.RegisterActivity(&activities.Machine{Ledger: s, Providers: sources})
	env.RegisterActivity(&activities.Repair{Repairs: s, Providers: sources})
	env.SetOnActivityCanceledListener(func(info *activity.Info) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.canceled[info.ActivityID] = true
	})
	s.mu.Lock()
	s.env, s.clock = env, env.Now
	s.waits, s.canceled = map[string]waiting{}, map[string]bool{}
	pending := s.events
	s.events = nil
	s.mu.Unlock()
	s.runs++
	for _, e := range pending {
		if !e.done {
			s.arm(e, at)
		}
	}
	if first {
		env.RegisterDelayedCallback(s.submit, 0)
		s.planDisturbances()
	}
	env.RegisterDelayedCallback(s.watch, watchEvery)
}

// after lets something happen after d, unless the shift ends before.
func (s *shift) after(d time.Duration, do func()) {
	now := s.now()
	s.arm(&event{at: now.Add(max(d, time.Millisecond)), do: do}, now)
}

func (s *shift) arm(e *event, now time.Time) {
	s.mu.Lock()
	s.events = append(s.events, e)
	env := s.env
	s.mu.Unlock()
	env.RegisterDelayedCallback(func() {
		if !e.done && !env.IsWorkflowCompleted() {
			e.done = true
			e.do()
		}
	}, max(e.at.Sub(now), time.Millisecond))
}

func (s *shift) submit() {
	op := s.op
	s.env.UpdateWorkflow(lifecycle.UpdateSubmit, op.in.OperationID, &testsuite.TestUpdateCallback{
		OnAccept: func() {}, OnReject: func(err error) { op.refusal = err },
		OnComplete: func(_ any, err error) {
			op.refusal, op.answered = err, true
			s.logf("submit: %v", err)
			if err == nil {
				s.enroll()
			}
		},
	})
}

// status queries the operation.
func (s *shift) status() (st lifecycle.OperationStatus, err error) {
	v, err := s.env.QueryWorkflow(lifecycle.QueryStatus)
	if err == nil {
		err = v.Get(&st)
	}
	return st, err
}

// recover is what the run watcher and perhaps an operator do after a run was terminated.
func (s *shift) recover() {
	s.hit("terminated")
	s.logf("the run was terminated")
	s.Abandon(s.op.in.OperationID)
	if s.r.IntN(2) == 0 || len(lifecycle.ActionsIn(s.Node(s.nodeID).State)) == 0 {
		s.hit("rehydrated")
		s.Rehydrate(s.nodeID)
	}
}

// decommission removes the node, whatever its state: no fault happens then.
func (s *shift) decommission() error {
	if now := s.now(); now.Before(s.start.Add(2 * storm)) {
		at := s.start.Add(2 * storm)
		s.clock = func() time.Time { return at }
	}
	for range 6 {
		n := s.Node(s.nodeID)
		if n.State == lifecycle.NodeRemoved {
			if ids := s.unowned(s.nodeID); len(ids) > 0 {
				return fmt.Errorf("machines %v exist and no ledger lists them", ids)
			}
			return s.checkAudit()
		}
		if n.OperationID != "" {
			s.Rehydrate(s.nodeID)
			n = s.Node(s.nodeID)
		}
		a, o := lifecycle.ActionRemove, lifecycle.Options{}
		switch n.State {
		case lifecycle.NodeActive, lifecycle.NodeOffline, lifecycle.NodeQuarantined, lifecycle.NodeDrained:
			a, o = lifecycle.ActionRetire, lifecycle.Options{Drain: true}
		}
		if err := s.operate(a, o); err != nil {
			return err
		}
		if a == lifecycle.ActionRemove && schema.KindOf(typed(s.op.refusal)) == schema.KindNodeInUse {
			// An earlier operation skipped the phase that finds workloads.
			if err := s.operate(a, lifecycle.Options{Force: true}); err != nil {
				return err
			}
		}
		if s.op.refusal != nil {
			return fmt.Errorf("the node is stranded: it is %s, and %s is refused: %w", n.State, a, s.op.refusal)
		}
	}
	return fmt.Errorf("the node is stranded: it is %s", s.Node(s.nodeID).State)
}

// waitInterceptor observes the activities that wait for tasks.
type waitInterceptor struct {
	interceptor.WorkerInterceptorBase
	s *shift
}

func (w *waitInterceptor) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	i := &activityInterceptor{s: w.s}
	i.Next = next
	return i
}

type activityInterceptor struct {
	interceptor.ActivityInboundInterceptorBase
	s *shift
}

// ExecuteActivity ends the tries of a canceled activity, which the test environment
// continues, and lets the time limit of a wait end, which it does not observe.
func (i *activityInterceptor) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	info := activity.GetInfo(ctx)
	if info.IsLocalActivity {
		return i.Next.ExecuteActivity(ctx, in)
	}
	s := i.s
	s.mu.Lock()
	over := info.Attempt > 1 && s.canceled[info.ActivityID]
	if info.Attempt == 1 {
		delete(s.canceled, info.ActivityID)
	}
	s.mu.Unlock()
	if over {
		return nil, temporal.NewNonRetryableApplicationError("canceled before", string(schema.KindInternal), nil)
	}
	if info.ActivityType.Name == "RunNodeTask" && info.Attempt == 1 {
		s.wait(info)
	}
	return i.Next.ExecuteActivity(ctx, in)
}
