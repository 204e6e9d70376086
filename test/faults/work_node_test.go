package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nodeSide is the agent from the API's point of view: it has a journal and executes
// each accepted task once. Crashes of the agent are tested in package agent.
type nodeSide struct {
	polls int64 // made so far
	known map[string]*held
	order []*held
	// lost are the tasks that were marked lost. Of those, a destructive task may be
	// dispatched again only after an operator's decision.
	lost map[string]bool
}

// held is one entry of the journal.
type held struct {
	id       string
	kind     task.Type
	epoch    int64
	begun    int
	token    string // identifies the result, if any
	at       time.Time
	reported bool
}

// idle reports whether no task is accepted or unreported.
func (n *nodeSide) idle() bool { return len(n.have()) == 0 }

func (n *nodeSide) have() (ids []string) {
	for _, h := range n.order {
		if !h.reported {
			ids = append(ids, h.id)
		}
	}
	return ids
}

// pick returns a random entry that satisfies is.
func (s *round) pick(is func(*held) bool) *held {
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

// poll requests tasks. A lost poll may still arrive after later ones; its response is
// then dropped.
func (s *round) poll(ctx context.Context) error {
	s.node.polls++
	poll := wire.PollRequest{HeldTasks: s.node.have(), AgentSession: "boot-1", PollSeq: s.node.polls}
	if s.may(handUnasked, 8) {
		if s.may(handLate, 2) {
			s.late = append(s.late, func(ctx context.Context) error {
				offer, err := s.store.Tasks.NextTask(ctx, s.caller, poll, task.LeaseDuration, nil)
				if offer != nil {
					s.logf("poll %d arrives late and receives %s, lease %d", poll.PollSeq, offer.Type, offer.Lease.Epoch)
				}
				return err
			})
		}
		return nil
	}
	offer, err := s.store.Tasks.NextTask(ctx, s.caller, poll, task.LeaseDuration, nil)
	if err != nil || offer == nil {
		return err
	}
	s.logf("dispatch of %s, lease %d", offer.Type, offer.Lease.Epoch)
	if s.node.lost[offer.TaskID] {
		return fmt.Errorf("%s was lost and is dispatched again without a decision", offer.Type)
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

// begin executes a task on the node. Before a destructive one, the node sends progress.
func (s *round) begin(ctx context.Context) error {
	h := s.pick(func(h *held) bool { return h.begun == 0 && !h.reported })
	if h == nil {
		return nil
	}
	if h.kind == task.WorkloadDrain {
		if allowed, err := s.extend(ctx, h); err != nil || !allowed {
			return err
		}
	}
	h.begun++
	s.logf("node begins %s", h.kind)
	return nil
}

// end creates the result.
func (s *round) end(context.Context) error {
	if h := s.pick(func(h *held) bool { return h.begun > 0 && h.token == "" }); h != nil {
		h.token, h.at = fmt.Sprintf("%s-%d", h.kind, s.r.Uint32()), s.db.clock.Now().UTC()
		s.logf("node ends %s", h.kind)
	}
	return nil
}

// progress extends the lease of a task without a result.
func (s *round) progress(ctx context.Context) error {
	h := s.pick(func(h *held) bool { return h.token == "" && !h.reported })
	if h == nil {
		return nil
	}
	_, err := s.extend(ctx, h)
	return err
}

// extend sends progress. With a single agent the lease is never held by another one, but
// a destructive task that was lost before it began may not begin: the node drops it.
func (s *round) extend(ctx context.Context, h *held) (allowed bool, err error) {
	p, err := s.store.Tasks.Progress(ctx, s.caller, h.id, task.Progress{LeaseEpoch: h.epoch, Message: "working"}, task.LeaseDuration)
	if schema.KindOf(err) == schema.KindLeaseLost && h.kind == task.WorkloadDrain && h.begun == 0 {
		s.logf("node drops %s", h.kind)
		h.reported = true
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("progress of %s under lease %d: %w", h.kind, h.epoch, err)
	}
	delete(s.node.lost, h.id)
	if !s.may(progressLost, 4) {
		h.epoch = p.Response.Lease.Epoch
	}
	return true, nil
}

// report posts a result until the API responds.
func (s *round) report(ctx context.Context) error {
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
		_, err := s.store.Tasks.Result(ctx, s.caller, h.id, nodeapi.ReceivedResult{Result: r})
		s.logf("node reports %s under lease %d: %v", h.kind, r.LeaseEpoch, err)
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
