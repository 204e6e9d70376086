package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// flowSide is the workflow in Temporal and the worker that runs its activities: three
// sequential steps.
type flowSide struct {
	s      *round
	at     int
	open   bool   // the activity attempt has returned and awaits its completion
	parked string // the step whose task was lost
	back   map[string]bool
	done   map[string]string // token of the result, by step
}

func (f *flowSide) steps() []task.Type {
	return []task.Type{task.WorkloadCordon, task.WorkloadDrain, task.NodeProbe}
}

func (f *flowSide) finished() bool { return f.at == len(f.steps()) }

func (f *flowSide) String() string {
	if f.finished() {
		return "the workflow is over"
	}
	return fmt.Sprintf("the workflow is at %s, parked at %q", f.steps()[f.at], f.parked)
}

// spec describes the task of a step.
func (s *round) spec(kind task.Type) activities.TaskSpec {
	return activities.TaskSpec{OperationID: s.fence.OperationID, OpSeq: s.fence.OpSeq, NodeID: s.fence.NodeID, Step: string(kind), Type: kind,
		Deadline: s.db.clock.Now().Add(century)}
}

// work is the worker: it runs the due activity, or retries one whose heartbeat timed
// out, like activities.Task.RunNodeTask.
func (s *round) work(ctx context.Context) error {
	f := &s.flow
	if f.finished() || f.parked != "" || f.open && !s.may(tried, 6) {
		return nil
	}
	kind := f.steps()[f.at]
	spec := s.spec(kind)
	owner := task.Owner{WorkflowID: lifecycle.NodeWorkflowID(s.caller.Host, s.fence.NodeID), RunID: "run", ActivityID: string(kind)}
	row, err := s.store.Tasks.Prepare(ctx, spec, owner)
	switch {
	case err != nil:
		return err
	case row.Result != nil:
		f.open = true
		f.complete(string(kind), *row.Result)
		return nil
	case !row.Stored:
		if s.may(workerBefore, 4) {
			return nil
		}
		if err := s.store.Tasks.Enqueue(ctx, spec, owner, row, []byte(`{}`)); err != nil {
			return err
		}
		s.logf("worker stores %s", kind)
		if s.may(workerAfter, 4) {
			return nil
		}
	}
	f.open = true
	return nil
}

// complete completes the activity. It returns false if none is pending.
func (f *flowSide) complete(step string, r task.Result) bool {
	if f.finished() || !f.open || step != string(f.steps()[f.at]) {
		return false
	}
	f.s.logf("workflow: %s %s %s", step, r.Status, r.Message)
	f.open = false
	if r.Status != task.Succeeded {
		f.parked = step
		f.heal()
		return true
	}
	var out struct{ Token string }
	_ = json.Unmarshal(r.Output, &out) // compared with the result of the node
	f.done[step] = out.Token
	f.at++
	return true
}

// heal continues the parked step when its task has returned. The event may arrive
// more than once.
func (f *flowSide) heal() {
	if f.parked != "" && f.back[f.parked] {
		delete(f.back, f.parked)
		f.s.logf("workflow: %s continues", f.parked)
		f.parked = ""
	}
}

// relay runs one relay process until it is idle or crashes.
func (s *round) relay(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	m := &crashingRelay{Outbox: s.outbox, s: s, end: end}
	r := relay.Relay{Outbox: m, Temporal: m, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)}
	r.Run(ctx)
	return m.err
}

// crashingRelay implements the outbox and Temporal for a relay that may crash.
type crashingRelay struct {
	*store.Outbox
	s    *round
	end  context.CancelFunc
	dead bool
	err  error
}

func (m *crashingRelay) die() error {
	m.dead = true
	m.end()
	return errDied
}

// Wake implements relay.Outbox. A relay that waits for it is idle.
func (m *crashingRelay) Wake() <-chan struct{} {
	m.end()
	return nil
}

// Take implements relay.Outbox.
func (m *crashingRelay) Take(ctx context.Context, limit int, delivered []relay.Message) ([]relay.Message, error) {
	if m.dead {
		return nil, errDied
	}
	return m.Outbox.Take(ctx, limit, delivered)
}

// Failed implements relay.Outbox.
func (m *crashingRelay) Failed(ctx context.Context, id int64, why string) error {
	m.end()
	if m.dead {
		return errDied
	}
	return m.Outbox.MarkFailed(ctx, id, why)
}

// Orphaned implements relay.Outbox. Here every result has an owner.
func (m *crashingRelay) Orphaned(_ context.Context, _ int64, why string) error {
	m.err = fmt.Errorf("a message was orphaned: %s", why)
	m.end()
	return m.err
}

// CompleteTask implements relay.Temporal.
func (m *crashingRelay) CompleteTask(ctx context.Context, o task.Owner, r task.Reference) error {
	return m.deliver(func() error {
		row, err := m.s.store.Tasks.Find(ctx, m.s.spec(task.Type(o.ActivityID)))
		if err != nil {
			return err
		}
		if row.Result == nil { // changed since
			return nil
		}
		if o.WorkflowID != lifecycle.NodeWorkflowID(m.s.caller.Host, m.s.fence.NodeID) || r.TaskID != row.TaskID || !m.s.flow.complete(o.ActivityID, *row.Result) {
			return schema.NewError(schema.KindNotFound, "no activity is pending").WithReason(schema.ReasonActivityClosed)
		}
		return nil
	})
}

// SignalAgent implements relay.Temporal.
func (m *crashingRelay) SignalAgent(_ context.Context, workflowID string, e lifecycle.AgentEvent) error {
	return m.deliver(func() error {
		if e.Event == lifecycle.EventTaskReturned && workflowID == lifecycle.NodeWorkflowID(m.s.caller.Host, m.s.fence.NodeID) {
			m.s.flow.back[e.Step] = true
			m.s.flow.heal()
		}
		return nil
	})
}

func (m *crashingRelay) deliver(do func() error) error {
	switch {
	case m.dead || m.s.may(relayBefore, 6):
		return m.die()
	case m.s.may(temporalAway, 6):
		return errDied
	}
	err := do()
	if m.s.may(relayAfter, 6) {
		_ = m.die()
	}
	return err
}
