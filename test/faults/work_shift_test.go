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

// death is where something died or got lost.
type death string

// What may happen between two steps.
const (
	workerBefore  death = "worker dies before a task is stored"
	workerAfter   death = "worker dies after a task is stored"
	handLost      death = "hand-over committed, answer lost"
	handUnasked   death = "poll lost"
	handLate      death = "poll comes after later ones"
	progressLost  death = "progress committed, answer lost"
	resultUnasked death = "result lost on the way"
	resultLost    death = "result committed, answer lost"
	resultTwice   death = "result sent again later"
	relayBefore   death = "relay dies before the completion"
	relayAfter    death = "relay dies after the completion"
	temporalAway  death = "Temporal away"
	tried         death = "activity tried again"
	given         death = "task given up or offered again"
)

var deaths = []death{workerBefore, workerAfter, handLost, handUnasked, handLate, progressLost, resultUnasked, resultLost, resultTwice,
	relayBefore, relayAfter, temporalAway, tried, given}

// errDied is what a caller sees of somebody who died.
var errDied = schema.NewError(schema.KindServiceUnavailable, "the other side died")

// shift is one operation on one node, with everybody who takes part in it.
type shift struct {
	*world
	r      *rand.Rand
	calm   bool // nothing fails any more
	caller nodeapi.Caller
	fence  activities.Fence
	node   nodeSide
	flow   flowSide
	late   []func(context.Context) error // requests that arrive again
	outbox *store.Outbox

	hits   map[death]int
	byHand int
	trace  []string
}

const (
	stormSteps = 120
	calmSteps  = 400
)

// shift works one operation off: first in a storm, then in a calm in which all
// that is left must come to its end.
func (w *world) shift(ctx context.Context, tb testing.TB, seed uint64) (*shift, error) {
	tb.Helper()
	s := &shift{world: w, r: rand.New(rand.NewPCG(seed, 7)), hits: map[death]int{}}
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
	for i := 0; !s.settled(); i++ {
		if i == calmSteps {
			return s, fmt.Errorf("it does not come to an end: %s", &s.flow)
		}
		if err := s.step(ctx); err != nil {
			return s, err
		}
	}
	err := s.check(ctx)
	return s, err
}

// open registers an active node and begins a drain on it.
func (s *shift) open(ctx context.Context, seed uint64) error {
	s.runs++
	n, err := s.store.Register(ctx, wire.RegisterNodeRequest{Host: fmt.Sprintf("node-%d", s.runs), SKU: "cpu-dev", RegionCode: "region-1"}, operator)
	if err != nil {
		return err
	}
	if _, err := s.db.raw.Exec(ctx, "UPDATE nodes SET state = 'active' WHERE node_id = $1", n.ID); err != nil {
		return err
	}
	if err := s.claim(ctx, n.ID, lifecycle.ActionDrain); err != nil {
		return err
	}
	n, err = s.store.Node(ctx, n.ID)
	if err != nil {
		return err
	}
	s.caller = nodeapi.Caller{NodeID: n.ID, Incarnation: n.Incarnation, Host: n.Host}
	s.fence = activities.Fence{NodeID: n.ID, OperationID: n.Operation.OperationID, OpSeq: n.Operation.OpSeq, Actor: operator.Actor}
	// Nobody wakes a relay here: it looks when the draw says so.
	l, err := store.NewListener(s.db.url, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.outbox = s.store.Outbox(l)
	s.say("seed %d", seed)
	return nil
}

func (s *shift) say(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

// may draws whether something happens that one time in n does.
func (s *shift) may(d death, n int) bool {
	if s.calm || s.r.IntN(n) > 0 {
		return false
	}
	s.hits[d]++
	s.say("   %s", d)
	return true
}

// step is one thing that somebody does.
func (s *shift) step(ctx context.Context) error {
	acts := []func(context.Context) error{s.work, s.poll, s.begin, s.end, s.progress, s.progress, s.report, s.relay,
		s.sweep, s.sweep, s.pass, s.pass, s.again, s.resume}
	return acts[s.r.IntN(len(acts))](ctx)
}

// pass lets time go by: mostly little, at times past a lease.
func (s *shift) pass(ctx context.Context) error {
	by := time.Duration(1+s.r.IntN(10)) * time.Second
	if s.r.IntN(4) == 0 {
		by = time.Duration(60+s.r.IntN(60)) * time.Second
	}
	s.say("%s go by", by)
	return s.db.advance(ctx, by)
}

// again lets a request arrive once more.
func (s *shift) again(ctx context.Context) error {
	if len(s.late) == 0 {
		return nil
	}
	do := s.late[0]
	s.late = s.late[1:]
	return do(ctx)
}

// sweep runs the reclaimer.
func (s *shift) sweep(ctx context.Context) error {
	report, err := s.store.Reclaim(ctx, activities.ReclaimRequest{Limit: 100})
	for _, d := range report.Decisions {
		s.hits[given]++
		if d.Result == activities.ReclaimLost {
			s.node.lost[d.TaskID] = true
		}
		s.say("reclaimer: %s %s", d.Result, d.Type)
	}
	return err
}

// resume is an operator who has looked at the node.
func (s *shift) resume(ctx context.Context) error {
	if s.flow.parked == "" || !s.calm && s.r.IntN(4) > 0 {
		return nil
	}
	id := lifecycle.TaskID(s.fence.OperationID, s.flow.parked)
	_, err := s.store.ResumeTask(ctx, id, "looked at it", operator)
	if schema.KindOf(err) == schema.KindTaskStatus { // it came back already
		return nil
	}
	delete(s.node.lost, id)
	s.byHand++
	s.say("operator resumes %s", s.flow.parked)
	return err
}

// settled reports whether everybody has come to rest.
func (s *shift) settled() bool { return s.flow.over() && s.node.idle() && len(s.late) == 0 }

// check holds what was promised.
func (s *shift) check(ctx context.Context) error {
	var err error
	for _, kind := range s.flow.steps() {
		h := s.node.known[lifecycle.TaskID(s.fence.OperationID, string(kind))]
		if h == nil || h.begun != 1 {
			err = errors.Join(err, fmt.Errorf("%s was not begun just once: %+v", kind, h))
		} else if s.flow.done[string(kind)] != h.token {
			err = errors.Join(err, fmt.Errorf("the workflow got %q of %s, the node did %q", s.flow.done[string(kind)], kind, h.token))
		}
	}
	return errors.Join(err, s.audited(ctx, s.fence.NodeID), s.recorded(ctx))
}

// recorded reads the audit: each task was made once, ended once, and handed over
// once for each lease.
func (s *shift) recorded(ctx context.Context) error {
	events, err := s.store.Audit.Audit(ctx, s.fence.NodeID, 0, 10_000)
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
		view, viewErr := s.store.Task(ctx, id)
		err = errors.Join(err, viewErr)
		if view.Status != task.Succeeded || count[audit.TaskCreated] != 1 || count[audit.TaskFinished] != 1 ||
			count[audit.TaskDispatched] != int(view.Attempts) {
			err = errors.Join(err, fmt.Errorf("%s is %s after %d leases, and the audit says %v", kind, view.Status, view.Attempts, count))
		}
	}
	return err
}
