package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
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

	host, id string
	// prior is the node's state before the operation.
	prior     lifecycle.NodeState
	operation lifecycle.Operation
	// typed are the commands that the test typed as they were printed, seen is the newest
	// one with its parking.
	typed []string
	seen  string
	ended bool
}

func (e *endedRun) String() string {
	name := string(e.action)
	if e.options.CordonOnly {
		name += " --cordon-only"
	}
	if e.options.Drain {
		name += " --drain"
	}
	if e.parked {
		return e.host + ": parked " + name + ", " + e.ending
	}
	return e.host + ": running " + name + ", " + e.ending
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
)

// endedRuns enumerates every action, running and parked, with every ending. A phase that is
// best effort never parks, and one that waits for the agent's enrollment parks after hours.
func endedRuns() (all []*endedRun) {
	endings := []string{endTerminate, endCancel, endDelete, endBug, endGarbage, endResetFirst, endResetMid, endResetLast}
	for _, p := range lifecycle.Operations() {
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
	return all
}

// TestEndings ends the runs of all actions in every way that Temporal's Web UI, an
// operator's script or a defect may. Afterwards the commands that gpuaas stuck prints,
// typed as they are, restore a legal state of every node.
func TestEndings(t *testing.T) {
	all := endedRuns()
	s := &sweep{T: t, temporal: dial(t), prefix: host(t, "end")}
	for _, e := range all {
		s.place(e)
	}
	fleet := startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	fleet.waitActive(t)
	s.prepare(all)
	fleet.stop(t)

	release := s.start(all)
	s.park(all)
	began := time.Now()
	s.failByBug(having(all, endBug))
	s.each(all, s.end)
	release()
	ended := slices.Concat(having(all, endTerminate), having(all, endDelete), having(all, endBug))
	s.typeUntil("every operation without a run is abandoned, and its printed command works", ended, s.freed)
	t.Logf("%d operations without a run recovered in %s", len(ended), time.Since(began).Round(time.Second))
	s.requireNoTasks(ended)

	// The causes are repaired: the node agents return, and the provider of the machines.
	startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	query(t, nil, "UPDATE resources SET provider = 'manual' WHERE provider = 'elsewhere'")
	s.typeUntil("every node is in a legal state", all, s.freed)
	s.each(all, s.requireLegal)
	s.report(all)
}

func having(all []*endedRun, ending string) (out []*endedRun) {
	for _, e := range all {
		if e.ending == ending {
			out = append(out, e)
		}
	}
	return out
}

// sweep runs the cases of TestEndings side by side.
type sweep struct {
	*testing.T
	temporal client.Client
	prefix   string
	// size is the number of nodes of the fleet.
	size int
	// refused counts the typed commands that failed: the run may end before its row says so.
	refused atomic.Int64
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
	var response wire.LifecycleResponse
	callAdminAPI(s.T, http.MethodPost, "/nodes/"+e.id+"/"+string(a), wire.LifecycleRequest{Reason: "test", Options: o}, &response)
	return response.Operation
}

// start starts the operations. No agent runs, so each one waits in its first phase for the
// node. A remove waits for the database instead: the ledger is locked until release.
func (s *sweep) start(all []*endedRun) (release func()) {
	s.Helper()
	s.each(all, func(e *endedRun) {
		if e.action != lifecycle.ActionRemove || e.parked {
			s.leaveOpenResource(e)
			e.operation = s.request(e, e.action, e.options)
		}
	})
	eventually(s.T, "no operation uses the ledger", func() bool {
		return queryNumber(s.T, "SELECT count(*) FROM operations WHERE ended_at IS NULL AND phase = 'adopt'") == 0
	})
	release = s.lockLedger()
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

// lockLedger locks the ledger of all nodes until release.
func (s *sweep) lockLedger() (release func()) {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), databaseURL(s.T))
	require.NoError(s.T, err)
	tx, err := conn.Begin(s.Context())
	require.NoError(s.T, err)
	_, err = tx.Exec(s.Context(), "LOCK TABLE resources IN ACCESS EXCLUSIVE MODE")
	require.NoError(s.T, err)
	release = sync.OnceFunc(func() {
		require.NoError(s.T, conn.Close(context.WithoutCancel(s.Context())))
	})
	s.Cleanup(release)
	return release
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
	eventually(s.T, "the operations park", func() bool {
		return !slices.ContainsFunc(waiting, func(e *endedRun) bool {
			return queryNumber(s.T, "SELECT count(*) FROM operations WHERE operation_id = $1 AND status = 'parked'", e.operation.OperationID) == 0
		})
	})
}

// typeUntil types what gpuaas stuck prints, each command once per parking, until done holds
// for all cases.
func (s *sweep) typeUntil(what string, all []*endedRun, done func(*endedRun) bool) {
	s.Helper()
	s.Cleanup(func() {
		for _, e := range all {
			if s.Failed() && !e.ended {
				s.Logf("open: %s, %s; typed: %q", e, run(s.T, "op", "show", e.operation.OperationID).stdout, e.typed)
			}
		}
	})
	require.Eventually(s.T, func() bool {
		byOperation := map[string]*endedRun{}
		for _, e := range all {
			if e.ended = done(e); !e.ended {
				byOperation[e.operation.OperationID] = e
			}
		}
		var lines []*endedRun
		for _, row := range decode[wire.StuckList](s.T, ok(s.T, "stuck", "--limit", "0", "-o", "json")).Stuck {
			e := byOperation[row.OperationID]
			if e == nil || row.Stuck == nil {
				continue
			}
			if seen := row.Stuck.Since.String() + row.Stuck.Next; seen != e.seen {
				e.seen, e.typed = seen, append(e.typed, row.Stuck.Next)
				lines = append(lines, e)
			}
		}
		s.each(lines, s.typeLast)
		return len(byOperation) == 0
	}, fleetTimeout, time.Second, what)
}

// typeLast types the printed command, with a reason in place of the word TEXT. A command
// that asks a question is repeated with the answer yes.
func (s *sweep) typeLast(e *endedRun) {
	line := e.typed[len(e.typed)-1]
	words := strings.Fields(strings.ReplaceAll(line, lifecycle.ReasonPlaceholder, "typed"))
	if !assertCommand(s.T, line, words) {
		return
	}
	r := run(s.T, words[1:]...)
	if r.code == schema.ExitUsage && strings.Contains(r.stderr, "--yes") {
		r = run(s.T, append(words[1:], "--yes")...)
	}
	if r.code != schema.ExitDone && s.refused.Add(1) <= 5 {
		s.Logf("%s: %s: exit %d %s", e, line, r.code, strings.TrimSpace(r.stderr))
	}
}

func assertCommand(t *testing.T, line string, words []string) bool {
	t.Helper()
	if len(words) > 1 && words[0] == "gpuaas" {
		return true
	}
	t.Errorf("%q is no command", line)
	return false
}

// freed reports whether no operation holds the node. A reissue, and an enrollment whose
// node has no agent, wait for the node: they are canceled as their status offers.
func (s *sweep) freed(e *endedRun) bool {
	var op wire.OperationView
	callAdminAPI(s.T, http.MethodGet, "/operations/"+e.operation.OperationID, nil, &op)
	if op.Operation.Status == lifecycle.OperationRunning && slices.ContainsFunc(op.Operation.Phases, func(p lifecycle.Phase) bool {
		return p.Name == lifecycle.PhaseClaim && p.State == lifecycle.PhaseRunning
	}) && len(e.typed) == 0 {
		e.typed = append(e.typed, lifecycle.DecisionCommand(lifecycle.DecisionCancel, e.action, e.host, e.operation.OperationID))
		s.typeLast(e)
	}
	return op.Operation.Status.Ended() && s.view(e).Operation == nil
}

// requireLegal requires that the node is in the state before the operation, in the one after
// it, or in one that the node itself reached meanwhile, and that a further action may start
// there.
func (s *sweep) requireLegal(e *endedRun) {
	plan, _ := lifecycle.PlanOf(e.action, e.options)
	view := s.view(e)
	legal := append([]lifecycle.NodeState{e.prior, plan.To}, plan.Through...)
	if !slices.Contains(legal, view.State) || view.State != lifecycle.NodeRemoved && len(lifecycle.ActionsIn(view.State)) == 0 {
		s.Errorf("stranded: %s: the node is %s; typed: %q", e, view.State, e.typed)
	}
}

// requireNoTasks requires that no task of an operation without a run is open.
func (s *sweep) requireNoTasks(all []*endedRun) {
	s.Helper()
	for _, e := range all {
		require.Zero(s.T, queryNumber(s.T, `SELECT count(*) FROM node_tasks WHERE operation_id = $1
			AND status IN ('pending', 'dispatched', 'running')`, e.operation.OperationID), e)
	}
}

func (s *sweep) report(all []*endedRun) {
	s.Helper()
	typed := 0
	for _, e := range all {
		typed += len(e.typed)
	}
	s.Logf("%d operations ended in 8 ways: %d commands typed, %d of them rejected with the next one to type, 0 stranded",
		len(all), typed, s.refused.Load())
}
