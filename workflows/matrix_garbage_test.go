package workflows

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestMatrixGarbageSignals: signals that the control plane never sends change nothing in any phase
// and situation.
func TestMatrixGarbageSignals(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 1<<16)
	event := func(edit func(*lifecycle.AgentEvent)) lifecycle.AgentEvent {
		e := lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: testNode, Incarnation: 1}
		edit(&e)
		return e
	}
	garbage := []any{
		nil, "text", 12, -1.5, true, []byte{0xff, 0}, []string{"a"}, map[string]any{"event": 7, "incarnation": "one"}, huge,
		event(func(e *lifecycle.AgentEvent) { e.Event = "" }),
		event(func(e *lifecycle.AgentEvent) { e.Event = lifecycle.AgentEventName(huge) }),
		event(func(e *lifecycle.AgentEvent) { e.Event = lifecycle.EventNodeRemoved; e.NodeID = huge }),
		event(func(e *lifecycle.AgentEvent) { e.NodeID = "" }),
		event(func(e *lifecycle.AgentEvent) { e.NodeID, e.Incarnation = huge, math.MaxInt64 }),
		event(func(e *lifecycle.AgentEvent) { e.Incarnation = 0 }),
		event(func(e *lifecycle.AgentEvent) { e.Incarnation = math.MinInt64 }),
		event(func(e *lifecycle.AgentEvent) {
			e.Event, e.OperationID, e.Step = lifecycle.EventTaskReturned, "op-2", "workload.drain"
		}),
		event(func(e *lifecycle.AgentEvent) {
			e.Event, e.OperationID, e.Step = lifecycle.EventTaskReturned, "op-1", huge
		}),
	}
	for _, c := range cells() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := enter(t, c)
			p.then(func() {
				before := p.status()
				for _, g := range garbage {
					p.env.SignalWorkflow(lifecycle.SignalAgent, g)
					p.env.SignalWorkflow("no-such-signal", g)
				}
				p.after(func() { require.Equal(t, before, p.status()) })
			})
			p.finish()
			p.requireEnd(c.canceled(""))
		})
	}
}

// TestMatrixGarbageDecisions: decisions that are not well formed, or that are addressed to
// something else, are rejected and change nothing in any phase and situation.
func TestMatrixGarbageDecisions(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := enter(t, c)
			var answers []error
			p.then(func() {
				before := p.status()
				for _, g := range garbageDecisions() {
					i := len(answers)
					answers = append(answers, errUnanswered)
					p.env.UpdateWorkflow(lifecycle.UpdateResolve, fmt.Sprintf("garbage-%d", i), &testsuite.TestUpdateCallback{
						OnAccept:   func() {},
						OnReject:   func(err error) { answers[i] = err },
						OnComplete: func(_ any, err error) { answers[i] = err },
					}, g)
				}
				p.after(func() { require.Equal(t, before, p.status()) })
			})
			p.finish()
			p.requireEnd(c.canceled(""))
			for i, err := range answers {
				require.Error(t, err, "%.200v", garbageDecisions()[i])
				require.NotErrorIs(t, err, errUnanswered)
				require.Less(t, len(err.Error()), 2000, "the rejection repeats the request")
			}
		})
	}
}

// garbageDecisions are arguments of the update that no operation takes.
func garbageDecisions() []any {
	huge := strings.Repeat("x", 1<<16)
	request := func(edit func(*lifecycle.ResolveRequest)) lifecycle.ResolveRequest {
		r := lifecycle.ResolveRequest{Decision: lifecycle.DecisionCancel, Reason: "because", By: "bob"}
		edit(&r)
		return r
	}
	never, long := time.Time{}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	return []any{
		nil, "cancel", 12, true, []string{"cancel"}, map[string]any{"decision": 7}, map[string]any{"decision": "cancel", "reason": []int{1}},
		request(func(r *lifecycle.ResolveRequest) { r.Decision = "" }),
		request(func(r *lifecycle.ResolveRequest) { r.Decision = lifecycle.Decision(huge) }),
		request(func(r *lifecycle.ResolveRequest) { r.Decision = lifecycle.DecisionResume }),
		request(func(r *lifecycle.ResolveRequest) { r.Reason = "" }),
		request(func(r *lifecycle.ResolveRequest) { r.Reason = "\n\t " }),
		request(func(r *lifecycle.ResolveRequest) { r.Reason = lifecycle.ReasonPlaceholder }),
		request(func(r *lifecycle.ResolveRequest) { r.OperationID = "op-2" }),
		request(func(r *lifecycle.ResolveRequest) { r.OperationID = huge }),
		request(func(r *lifecycle.ResolveRequest) { r.Phase = huge }),
		request(func(r *lifecycle.ResolveRequest) { r.Phase = "no-such-phase" }),
		request(func(r *lifecycle.ResolveRequest) { r.StuckSince = &never }),
		request(func(r *lifecycle.ResolveRequest) { r.StuckSince = &long }),
	}
}

// TestDecisionIsBounded: a decision without a name, or with an enormous name or reason, is
// rejected, because the audit and the Web UI show both.
func TestDecisionIsBounded(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]lifecycle.ResolveRequest{
		"no name":         {Reason: "because"},
		"blank name":      {Reason: "because", By: " "},
		"enormous name":   {Reason: "because", By: strings.Repeat("x", 1<<16)},
		"enormous reason": {Reason: strings.Repeat("x", 1<<16), By: "bob"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := enter(t, cellAt(lifecycle.ActionDrain, lifecycle.PhaseCordon, atParked))
			r.Decision = lifecycle.DecisionCancel
			p.then(func() { p.resolve(r) })
			p.finish()
			p.run()
			require.Equal(t, schema.KindInvalidRequest, kindOf(p.resolved[0]))
			require.Less(t, len(p.resolved[0].Error()), 2000)
		})
	}
}

func cellAt(a lifecycle.Action, phase string, at situation) cell {
	for _, c := range cells() {
		if c.action == a && c.phase.Name == phase && c.at == at {
			return c
		}
	}
	panic("no such cell")
}

// TestCancelBeforeClaim: an operation whose claim waits for the database can be canceled,
// by a decision and in the Web UI. The node keeps its state.
func TestCancelBeforeClaim(t *testing.T) {
	t.Parallel()
	for _, plan := range lifecycle.Operations() {
		for how, cancel := range map[string]func(*place){
			"op cancel": func(p *place) { p.decide(lifecycle.DecisionCancel, "because") },
			"Web UI":    func(p *place) { p.env.CancelWorkflow() },
		} {
			t.Run(string(plan.Action)+"/"+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(plan.From[0])
				w.fail["claim"] = errDown
				p := &place{bed: setup(t, plan.Action, w), cell: cell{action: plan.Action, from: plan.From[0]}}
				p.later(10*time.Second, func() { cancel(p) })
				p.later(10*time.Second, func() { w.heal("claim") })
				st := p.run()
				require.Contains(t, []lifecycle.OperationState{lifecycle.OperationCanceled, lifecycle.OperationRejected}, st.Operation.Status)
				if how == "op cancel" {
					require.Equal(t, []error{nil}, p.resolved)
				}
				if w.finished != nil && w.finished.Node != "" {
					require.Equal(t, plan.From[0], w.finished.Node)
				}
				for _, call := range w.story() {
					require.NotContains(t, call, "task workload.cordon")
					require.NotContains(t, call, "task workload.drain")
					require.NotContains(t, call, "release")
				}
			})
		}
	}
}
