package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nodeSide is the agent as the API sees it: it has a journal, and executes what
// it accepted once. Its own deaths are in package agent's tests.
type nodeSide struct {
	polls int64 // made so far
	known map[string]*held
	order []*held
	// lost are the tasks that were given up: of those, the node must be offered
	// what destroys only when a person said so.
	lost map[string]bool
}

// held is one entry of the journal.
type held struct {
	id       string
	kind     task.Type
	epoch    int64
	begun    int
	token    string // of the result, once there is one
	at       time.Time
	reported bool
}

// idle reports whether nothing is accepted or unreported.
func (n *nodeSide) idle() bool { return len(n.have()) == 0 }

func (n *nodeSide) have() (ids []string) {
	for _, h := range n.order {
		if !h.reported {
			ids = append(ids, h.id)
		}
	}
	return ids
}

// pick draws an entry for which is holds.
func (s *shift) pick(is func(*held) bool) *held {
	var fit []*held
	for _, h := range s.node.order {
		if is(h) {
			fit = append(fit, h)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[s.r.IntN(len(fit))]
}

// poll asks for work. One that is lost may come after later ones all the same;
// then its answer reaches nobody.
func (s *shift) poll(ctx context.Context) error {
	s.node.polls++
	poll := wire.PollRequest{HeldTasks: s.node.have(), AgentSession: "boot-1", PollSeq: s.node.polls}
	if s.may(handUnasked, 8) {
		if s.may(handLate, 2) {
			s.late = append(s.late, func(ctx context.Context) error {
				offer, err := s.store.NextTask(ctx, s.caller, poll, task.LeaseDuration)
				if offer != nil {
					s.say("poll %d comes late and is handed %s, lease %d", poll.PollSeq, offer.Type, offer.Lease.Epoch)
				}
				return err
			})
		}
		return nil
	}
	offer, err := s.store.NextTask(ctx, s.caller, poll, task.LeaseDuration)
	if err != nil || offer == nil {
		return err
	}
	s.say("hand-over of %s, lease %d", offer.Type, offer.Lease.Epoch)
	if s.node.lost[offer.TaskID] {
		return fmt.Errorf("%s was given up and is offered again unasked", offer.Type)
	}
	if s.may(handLost, 4) {
		return nil
	}
	h := s.node.known[offer.TaskID]
	if h == nil {
		h = &held{id: offer.TaskID, kind: offer.Type}
		s.node.known[offer.TaskID], s.node.order = h, append(s.node.order, h)
	}
	h.epoch, h.reported = max(h.epoch, offer.Lease.Epoch), false
	return nil
}

// begin has an effect on the node.
func (s *shift) begin(context.Context) error {
	if h := s.pick(func(h *held) bool { return h.begun == 0 }); h != nil {
		h.begun++
		s.say("node begins %s", h.kind)
	}
	return nil
}

// end makes the result.
func (s *shift) end(context.Context) error {
	if h := s.pick(func(h *held) bool { return h.begun > 0 && h.token == "" }); h != nil {
		h.token, h.at = fmt.Sprintf("%s-%d", h.kind, s.r.Uint32()), s.db.clock.Now().UTC()
		s.say("node ends %s", h.kind)
	}
	return nil
}

// progress extends the lease of what is worked on. Work whose lease is another's
// would be ended; with one agent there is none.
func (s *shift) progress(ctx context.Context) error {
	h := s.pick(func(h *held) bool { return h.token == "" })
	if h == nil {
		return nil
	}
	p, err := s.store.Progress(ctx, s.caller, h.id, task.Progress{LeaseEpoch: h.epoch, Message: "at it"}, task.LeaseDuration)
	if err != nil {
		return fmt.Errorf("progress of %s under lease %d: %w", h.kind, h.epoch, err)
	}
	delete(s.node.lost, h.id)
	if !s.may(progressLost, 4) {
		h.epoch = p.Response.Lease.Epoch
	}
	return nil
}

// report posts a result until it is answered.
func (s *shift) report(ctx context.Context) error {
	h := s.pick(func(h *held) bool { return h.token != "" && !h.reported })
	if h == nil || s.may(resultUnasked, 8) {
		return nil
	}
	out, err := json.Marshal(map[string]any{"token": h.token, "stopped": []string{}, "cordoned": true, "workloads": []string{}, "healthy": true})
	if err != nil {
		return err
	}
	r := task.Result{LeaseEpoch: h.epoch, Status: task.Succeeded, Output: out, StartedAt: h.at, FinishedAt: h.at}
	post := func(ctx context.Context) error {
		_, err := s.store.Result(ctx, s.caller, h.id, nodeapi.ReceivedResult{Result: r})
		s.say("node reports %s under lease %d: %v", h.kind, r.LeaseEpoch, err)
		return err
	}
	if err := post(ctx); err != nil {
		return err
	}
	delete(s.node.lost, h.id)
	if s.may(resultTwice, 4) {
		s.late = append(s.late, post)
	}
	h.reported = !s.may(resultLost, 4)
	return nil
}
