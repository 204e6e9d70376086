package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	api "github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// endedRun is one node whose operation's run is ended, reset or disturbed in a way that no
// code of ours does.
type endedRun struct {
	action  lifecycle.Action
	options lifecycle.Options
	parked  bool
	ending  string

	// point is the workflow task of endResetAt.
	point int

	host, id string
	// prior is the node's state before the operation.
	prior     lifecycle.NodeState
	operation lifecycle.Operation
	// before is the operation when its run ended.
	before lifecycle.Operation
	// number counts the cases. typed are the commands that the test typed as they were
	// printed, printed is the newest one of stuck, and seen the same with its park.
	number  int
	typed   []string
	printed string
	seen    string
	ended   bool
}

func (e *endedRun) String() string {
	name := string(e.action)
	if e.options.CordonOnly {
		name += " --cordon-only"
	}
	if e.options.Drain {
		name += " --drain"
	}
	ending := e.ending
	if ending == endResetAt {
		ending += fmt.Sprintf(" %d", e.point+1)
	}
	if e.parked {
		return e.host + ": parked " + name + ", " + ending
	}
	return e.host + ": running " + name + ", " + ending
}

// The endings.
const (
	endTerminate  = "terminate"
	endCancel     = "cancel"
	endDelete     = "delete"
	endBug        = "fail by a bug"
	endGarbage    = "garbage"
	endResetFirst = "reset to the first workflow task"
	endResetMid   = "reset to the middle workflow task"
	endResetLast  = "reset to the last workflow task"
	endResetAt    = "reset to workflow task"
	endReopen     = "terminate, and reset to the last workflow task when abandoned"
)

// endedRuns enumerates every action, running and parked, with every ending. A phase that is
// best effort never parks, and one that waits for the agent's enrollment parks after hours.
func endedRuns() (all []*endedRun) {
	endings := []string{endTerminate, endCancel, endDelete, endBug, endGarbage, endResetFirst, endResetMid, endResetLast, endReopen}
	for _, p := range lifecycle.Operations() {
		if p.Action == lifecycle.ActionUpgradeAgent {
			continue // it needs a release; to the control plane, it has one task as an uncordon
		}
		if p.Action == lifecycle.ActionTerminate {
			continue // it needs a provider that creates machines; to the control plane, it is a removal
		}
		for _, o := range []lifecycle.Options{{}, {CordonOnly: true}, {Drain: true}} {
			if o.CordonOnly && p.Action != lifecycle.ActionDrain || o.Drain && p.Action != lifecycle.ActionRetire {
				continue
			}
			plan, _ := lifecycle.PlanOf(p.Action, o)
			first := plan.Phases[0]
			for _, ending := range endings {
				all = append(all, &endedRun{action: p.Action, options: o, ending: ending})
				if !first.BestEffort && first.Name != lifecycle.PhaseBundle {
					all = append(all, &endedRun{action: p.Action, options: o, ending: ending, parked: true})
				}
			}
		}
	}
	if *endingsFull {
		all = append(all, allResets()...)
	}
	return all
}

// TestEndings ends the runs of all actions in every way that Temporal's Web UI, an
// operator's script or a defect may. Afterwards the commands that gpuaas stuck prints,
// typed as they are, restore a legal state of every node.
func TestEndings(t *testing.T) {
	all := endedRuns()
	s := &sweep{T: t, temporal: dial(t), prefix: host(t, "end")}
	for i, e := range all {
		e.number = i
		s.place(e)
	}
	fleet := startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	fleet.waitActive(t)
	s.prepare(all)
	fleet.stop(t)

	release := s.start(all)
	s.park(all)
	brief := s.startBrief(all)
	began := time.Now()
	failRuns(t, s.temporal, workflowsOf(having(all, endBug))...)
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	s.each(brief, s.end)
	s.each(slices.DeleteFunc(slices.Clone(all), (*endedRun).brief), s.end)
	release()
	s.reopen(having(all, endReopen))
	ended := slices.Concat(having(all, endTerminate), having(all, endDelete), having(all, endBug))
	s.typeUntil("every operation without a run is abandoned, and its printed command works", ended, s.freed)
	t.Logf("%d operations without a run recovered in %s", len(ended), time.Since(began).Round(time.Second))
	s.requireNoTasks(ended)

	// The causes are repaired: the node agents return, and the provider of the machines.
	startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	query(t, nil, "UPDATE resources SET provider = 'manual' WHERE provider = 'elsewhere'")
	s.typeUntil("every node is in a legal state", all, s.freed)
	s.report(all, s.countStranded(all))
}

func having(all []*endedRun, ending string) (out []*endedRun) {
	for _, e := range all {
		if e.ending == ending {
			out = append(out, e)
		}
	}
	return out
}

func workflowsOf(all []*endedRun) (ids []string) {
	for _, e := range all {
		ids = append(ids, e.operation.WorkflowID)
	}
	return ids
}

// sweep runs the cases of TestEndings side by side.
type sweep struct {
	*testing.T
	temporal client.Client
	prefix   string
	// size is the number of nodes of the fleet.
	size int
	// refused counts the typed commands that were rejected, by reason.
	mu      sync.Mutex
	refused map[string]int
}

// each runs f for all cases, eight at a time.
func (s *sweep) each(all []*endedRun, f func(*endedRun)) {
	s.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, e := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(e)
		})
	}
	wg.Wait()
	if s.Failed() {
		s.FailNow()
	}
}

// place gives the case a node of the fleet, or a host name for a node without an agent.
func (s *sweep) place(e *endedRun) {
	if e.action == lifecycle.ActionEnroll {
		e.host = host(s.T, "enroll")
		return
	}
	s.size++
	e.host = fmt.Sprintf("%s-%04d", s.prefix, s.size)
}

// prepare changes the state of each node to one in which its action may start.
func (s *sweep) prepare(all []*endedRun) {
	s.Helper()
	before := map[lifecycle.Action]lifecycle.Action{
		lifecycle.ActionRelease: lifecycle.ActionQuarantine, lifecycle.ActionReactivate: lifecycle.ActionRetire,
		lifecycle.ActionRemove: lifecycle.ActionRetire,
	}
	s.each(all, func(e *endedRun) {
		var view wire.NodeView
		if e.action == lifecycle.ActionEnroll {
			callAdminAPI(s.T, http.MethodPost, "/nodes", wire.RegisterNodeRequest{Host: e.host, SKU: "cpu-dev", RegionCode: "region-1"}, &view)
		} else {
			view = s.view(e)
		}
		e.id = view.ID
		if a := before[e.action]; a != "" {
			s.request(e, a, lifecycle.Options{})
		}
	})
	eventually(s.T, "the nodes are prepared", func() bool {
		return !slices.ContainsFunc(all, func(e *endedRun) bool {
			view := s.view(e)
			e.prior = view.State
			return view.Operation != nil || !slices.Contains(lifecycle.ActionsIn(view.State), e.action)
		})
	})
}

func (s *sweep) view(e *endedRun) (v wire.NodeView) {
	s.Helper()
	name := e.id
	if name == "" {
		name = e.host
	}
	callAdminAPI(s.T, http.MethodGet, "/nodes/"+name, nil, &v)
	return v
}

func (s *sweep) request(e *endedRun, a lifecycle.Action, o lifecycle.Options) lifecycle.Operation {
	s.Helper()
	c, err := api.New(shared.Getenv("GPUAAS_API_URL"), api.WithToken(shared.Getenv("GPUAAS_API_TOKEN")))
	require.NoError(s, err)
	started, err := c.Start(s.Context(), e.id, a, wire.LifecycleRequest{Reason: "test", Options: o}) // repeats what a busy worker did not take
	require.NoError(s, err)
	return started.Operation
}

// brief reports whether the operation runs only for a short time without its agent, because its
// first phase is best effort.
func (e *endedRun) brief() bool {
	plan, _ := lifecycle.PlanOf(e.action, e.options)
	return plan.Phases[0].BestEffort
}

// startBrief starts the brief operations, which are ended before the others.
func (s *sweep) startBrief(all []*endedRun) []*endedRun {
	s.Helper()
	brief := slices.DeleteFunc(slices.Clone(all), func(e *endedRun) bool { return !e.brief() })
	s.each(brief, func(e *endedRun) { e.operation = s.request(e, e.action, e.options) })
	return brief
}

// start starts the operations that are not brief. No agent runs, so each one waits in its first
// phase for the node. A remove waits for the database instead: the ledger is locked until release.
func (s *sweep) start(all []*endedRun) (release func()) {
	s.Helper()
	s.each(all, func(e *endedRun) {
		if !e.brief() && (e.action != lifecycle.ActionRemove || e.parked) {
			s.leaveOpenResource(e)
			e.operation = s.request(e, e.action, e.options)
		}
	})
	eventually(s.T, "no operation uses the ledger", func() bool {
		return queryNumber(s.T, "SELECT count(*) FROM operations WHERE ended_at IS NULL AND (phase = 'adopt' OR phase = 'teardown' AND status <> 'parked')") == 0
	})
	release = lock(s.T, "LOCK TABLE resources IN ACCESS EXCLUSIVE MODE")
	s.each(all, func(e *endedRun) {
		if e.action == lifecycle.ActionRemove && !e.parked {
			e.operation = s.request(e, e.action, e.options)
		}
	})
	return release
}

// leaveOpenResource gives a node to be removed a machine of a provider that no worker has,
// so that its teardown parks.
func (s *sweep) leaveOpenResource(e *endedRun) {
	s.Helper()
	if e.action == lifecycle.ActionRemove {
		query(s.T, nil, `INSERT INTO resources (resource_id, node_id, operation_id, kind, provider, state, created_at)
			SELECT gen_random_uuid(), node_id, operation_id, 'instance', 'elsewhere', 'created', now()
			FROM operations WHERE node_id = $1 ORDER BY started_at DESC LIMIT 1`, e.id)
	}
}

// park cancels the tasks of the operations that must park.
func (s *sweep) park(all []*endedRun) {
	s.Helper()
	waiting := slices.DeleteFunc(slices.Clone(all), func(e *endedRun) bool { return !e.parked })
	s.each(waiting, func(e *endedRun) {
		query(s.T, func(r pgx.Rows) {
			var id string
			require.NoError(s.T, r.Scan(&id))
			callAdminAPI(s.T, http.MethodPost, "/tasks/"+id+"/cancel", wire.TaskDecision{Reason: "test"}, &wire.TaskView{})
		}, "SELECT task_id::text FROM node_tasks WHERE operation_id = $1 AND status IN ('pending', 'dispatched', 'running')", e.operation.OperationID)
	})
	var left []string
	defer func() { assert.Empty(s.T, left, "operations that do not park") }()
	eventually(s.T, "the operations park", func() bool {
		left = nil
		for _, e := range waiting {
			if queryNumber(s.T, "SELECT count(*) FROM operations WHERE operation_id = $1 AND status = 'parked'", e.operation.OperationID) == 0 {
				left = append(left, string(e.action)+" "+e.operation.OperationID)
			}
		}
		return len(left) == 0
	})
}

// freed reports whether no operation holds the node. A reissue, and an enrollment whose
// node has no agent, wait for the node: they are canceled as their status offers.
func (s *sweep) freed(e *endedRun) bool {
	var op wire.OperationView
	callAdminAPI(s.T, http.MethodGet, "/operations/"+e.operation.OperationID, nil, &op)
	if op.Operation.Status == lifecycle.OperationRunning && slices.ContainsFunc(op.Operation.Phases, func(p lifecycle.Phase) bool {
		return p.Name == lifecycle.PhaseClaim && p.State == lifecycle.PhaseRunning
	}) && len(e.typed) == 0 {
		s.typeLine(e, lifecycle.DecisionCommand(lifecycle.DecisionCancel, e.action, e.host, e.operation.OperationID))
	}
	return op.Operation.Status.Ended() && s.view(e).Operation == nil
}

// countStranded counts the nodes that are not in the state before the operation, in the one
// that it enters or that is after it, or in one that the node itself reached meanwhile, or where no
// further action may start.
func (s *sweep) countStranded(all []*endedRun) (stranded int) {
	s.Helper()
	for _, e := range all {
		plan, _ := lifecycle.PlanOf(e.action, e.options)
		view := s.view(e)
		legal := append([]lifecycle.NodeState{e.prior, plan.Enter, plan.To}, plan.Through...)
		if !slices.Contains(legal, view.State) || view.State != lifecycle.NodeRemoved && len(lifecycle.ActionsIn(view.State)) == 0 {
			stranded++
			s.Logf("stranded: %s: the node is %s; typed: %q", e, view.State, e.typed)
		}
	}
	return stranded
}

// requireNoTasks requires that no task of an operation without a run is open.
func (s *sweep) requireNoTasks(all []*endedRun) {
	s.Helper()
	for _, e := range all {
		require.Zero(s.T, queryNumber(s.T, `SELECT count(*) FROM node_tasks WHERE operation_id = $1
			AND status IN ('pending', 'dispatched', 'running')`, e.operation.OperationID), e)
	}
}

func (s *sweep) report(all []*endedRun, stranded int) {
	s.Helper()
	typed := 0
	for _, e := range all {
		typed += len(e.typed)
	}
	s.Logf("%d operations ended in 9 ways: %d commands typed, rejected with the next one to type: %v; %d stranded",
		len(all), typed, s.refused, stranded)
	require.Zero(s.T, stranded)
}
