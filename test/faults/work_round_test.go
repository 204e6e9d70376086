package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// incident is a crash or a loss.
type incident string

// The incidents that may happen between two steps.
const (
	workerBefore  incident = "worker crashes before a task is stored"
	workerAfter   incident = "worker crashes after a task is stored"
	handLost      incident = "dispatch committed, response lost"
	handUnasked   incident = "poll lost"
	handLate      incident = "poll arrives after later ones"
	progressLost  incident = "progress committed, response lost"
	resultUnasked incident = "result lost on the way"
	resultLost    incident = "result committed, response lost"
	resultTwice   incident = "result sent again later"
	relayBefore   incident = "relay crashes before the completion"
	relayAfter    incident = "relay crashes after the completion"
	temporalAway  incident = "Temporal unavailable"
	tried         incident = "activity retried"
	given         incident = "task lost or requeued"
)

var incidents = []incident{workerBefore, workerAfter, handLost, handUnasked, handLate, progressLost, resultUnasked, resultLost, resultTwice,
	relayBefore, relayAfter, temporalAway, tried, given}

// errDied is the error of a caller whose peer crashed.
var errDied = schema.NewError(schema.KindServiceUnavailable, "the other side died")

// round is one operation on one node, with all components.
type round struct {
	*world
	r      *rand.Rand
	calm   bool // no more faults
	caller nodeapi.Caller
	fence  activities.Fence
	node   nodeSide
	flow   flowSide
	late   []func(context.Context) error // repeated requests
	outbox *store.Outbox

	hits   map[incident]int
	byHand int
	trace  []string
}

const (
	stormSteps = 120
	// calmTurns bounds the turns without faults. Each of three steps needs at most six
	// turns, and more after a lease expired.
	calmTurns = 60
)

// simulateRound runs one operation: first with faults, then without, when everything left
// must complete.
func (w *world) simulateRound(ctx context.Context, tb testing.TB, seed uint64) (*round, error) {
	tb.Helper()
	s := &round{world: w, r: rand.New(rand.NewPCG(seed, 7)), hits: map[incident]int{}}
	s.node.known, s.node.lost = map[string]*held{}, map[string]bool{}
	s.flow.s, s.flow.back, s.flow.done = s, map[string]bool{}, map[string]string{}
	if err := s.open(ctx, seed); err != nil {
		return s, err
	}
	for range stormSteps {
		if err := s.step(ctx); err != nil {
			return s, err
		}
	}
	s.calm = true
	for i := 0; !s.idle(); i++ {
		if i == calmTurns {
			return s, fmt.Errorf("it does not complete: %s", &s.flow)
		}
		if err := s.turn(ctx); err != nil {
			return s, err
		}
	}
	err := s.check(ctx)
	return s, err
}

// open registers an active node and begins a drain on it.
func (s *round) open(ctx context.Context, seed uint64) error {
	s.runs++
	n, err := s.store.Admin.Register(ctx, schema.NewID(), wire.RegisterNodeRequest{Host: fmt.Sprintf("node-%d", s.runs), SKU: "cpu-dev", RegionCode: "region-1"}, operator)
	if err != nil {
		return err
	}
	if _, err := s.db.raw.Exec(ctx, "UPDATE nodes SET state = 'active' WHERE node_id = $1", n.ID); err != nil {
		return err
	}
	if err := s.claim(ctx, n.ID, lifecycle.ActionDrain); err != nil {
		return err
	}
	n, err = s.store.Admin.Node(ctx, n.ID)
	if err != nil {
		return err
	}
	s.caller = nodeapi.Caller{NodeID: n.ID, Incarnation: n.Incarnation, Host: n.Host}
	s.fence = activities.Fence{NodeID: n.ID, OperationID: n.Operation.OperationID, OpSeq: n.Operation.OpSeq, Actor: operator.Actor}
	// The relay is never woken; it runs when the random choice selects it.
	l, err := store.NewListener(s.db.url, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.outbox = s.store.Tasks.Outbox(l)
	s.logf("seed %d", seed)
	return nil
}

func (s *round) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

// may returns true with probability 1/n.
func (s *round) may(d incident, n int) bool {
	if s.calm || s.r.IntN(n) > 0 {
		return false
	}
	s.hits[d]++
	s.logf("   %s", d)
	return true
}

func (s *round) acts() []func(context.Context) error {
	return []func(context.Context) error{s.work, s.poll, s.begin, s.end, s.progress, s.progress, s.report, s.relay,
		s.reclaim, s.reclaim, s.pass, s.pass, s.again, s.resume}
}

// step runs one random action.
func (s *round) step(ctx context.Context) error {
	acts := s.acts()
	return acts[s.r.IntN(len(acts))](ctx)
}

// turn runs every action once, in random order, so that no component starves.
func (s *round) turn(ctx context.Context) error {
	acts := s.acts()
	for _, i := range s.r.Perm(len(acts)) {
		if err := acts[i](ctx); err != nil {
			return err
		}
	}
	return nil
}

// pass advances the clock: mostly a little, sometimes past a lease.
func (s *round) pass(ctx context.Context) error {
	by := time.Duration(1+s.r.IntN(10)) * time.Second
	if s.r.IntN(4) == 0 {
		by = time.Duration(60+s.r.IntN(60)) * time.Second
	}
	s.logf("%s pass", by)
	return s.db.advance(ctx, by)
}

// again repeats a request.
func (s *round) again(ctx context.Context) error {
	if len(s.late) == 0 {
		return nil
	}
	do := s.late[0]
	s.late = s.late[1:]
	return do(ctx)
}

// reclaim runs the reclaimer.
func (s *round) reclaim(ctx context.Context) error {
	report, err := s.store.Tasks.Reclaim(ctx, activities.ReclaimRequest{Limit: 100})
	for _, d := range report.Decisions {
		s.hits[given]++
		if d.Result == activities.ReclaimLost {
			s.node.lost[d.TaskID] = true
		}
		s.logf("reclaimer: %s %s", d.Result, d.Type)
	}
	return err
}

// resume is the decision of an operator who has checked the node.
func (s *round) resume(ctx context.Context) error {
	if s.flow.parked == "" || !s.calm && s.r.IntN(4) > 0 {
		return nil
	}
	id := lifecycle.TaskID(s.fence.OperationID, s.flow.parked)
	_, err := s.store.Tasks.ResumeTask(ctx, id, "checked the node", operator)
	if schema.KindOf(err) == schema.KindTaskStatus { // it has already returned
		return nil
	}
	delete(s.node.lost, id)
	s.byHand++
	s.logf("operator resumes %s", s.flow.parked)
	return err
}

// idle reports whether all components are idle.
func (s *round) idle() bool { return s.flow.finished() && s.node.idle() && len(s.late) == 0 }

// check verifies the guarantees.
func (s *round) check(ctx context.Context) error {
	var err error
	for _, kind := range s.flow.steps() {
		h := s.node.known[lifecycle.TaskID(s.fence.OperationID, string(kind))]
		if h == nil || h.begun != 1 {
			err = errors.Join(err, fmt.Errorf("%s was not executed exactly once: %+v", kind, h))
		} else if s.flow.done[string(kind)] != h.token {
			err = errors.Join(err, fmt.Errorf("the workflow received %q of %s, the node reported %q", s.flow.done[string(kind)], kind, h.token))
		}
	}
	return errors.Join(err, s.verifyAudit(ctx, s.fence.NodeID), s.recorded(ctx))
}

// recorded verifies the audit: each task was enqueued once, finished once, and
// dispatched once per lease.
func (s *round) recorded(ctx context.Context) error {
	events, err := s.store.Admin.AuditStream(ctx, s.fence.NodeID, 0, 10_000)
	if err != nil {
		return err
	}
	for _, kind := range s.flow.steps() {
		id, count := lifecycle.TaskID(s.fence.OperationID, string(kind)), map[string]int{}
		for _, e := range events {
			if e.Target == id {
				count[e.Action]++
			}
		}
		view, viewErr := s.store.Tasks.Task(ctx, id)
		err = errors.Join(err, viewErr)
		if view.Status != task.Succeeded || count[audit.TaskCreated] != 1 || count[audit.TaskFinished] != 1 ||
			count[audit.TaskDispatched] != int(view.Attempts) {
			err = errors.Join(err, fmt.Errorf("%s is %s after %d leases, and the audit contains %v", kind, view.Status, view.Attempts, count))
		}
	}
	return err
}
