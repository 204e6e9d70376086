package workflows

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// signalAt signals an event of the given incarnation.
func (b *bed) signalAt(d time.Duration, event lifecycle.AgentEventName, incarnation int64) {
	b.env.RegisterDelayedCallback(func() {
		b.report(lifecycle.AgentEvent{Event: event, NodeID: testNode, Incarnation: incarnation})
	}, d)
}

// reissue is a bed whose bundle was issued.
func reissue(t *testing.T, from lifecycle.NodeState) *bed {
	t.Helper()
	b := setup(t, lifecycle.ActionReissueEnrollment, newWorld(from))
	b.signalAt(time.Second, lifecycle.EventBundleIssued, 1)
	return b
}

func TestReissueEnrollment(t *testing.T) {
	t.Parallel()

	t.Run("ends at the first poll with the new identity and changes no state", func(t *testing.T) {
		t.Parallel()
		plan, _ := lifecycle.PlanOf(lifecycle.ActionReissueEnrollment, lifecycle.Options{})
		for _, from := range plan.From {
			b := reissue(t, from)
			b.signalAt(time.Hour, lifecycle.EventTokenClaimed, 2)
			b.signalAt(time.Hour+time.Minute, lifecycle.EventFirstPoll, 2)
			st := b.run()
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Equal(t, from, st.Node.State)
			require.Zero(t, st.Operation.OpSeq)
			require.Equal(t, []string{"claim", "read enrollment", "advance claim", "read enrollment", "advance poll",
				"read enrollment", "finish completed"}, b.world.story())
			require.Equal(t, activities.Finish{Status: lifecycle.OperationCompleted, Outcome: "reissued; its agent polls with the new identity"}, *b.world.finished)
		}
	})

	t.Run("is refused while the node is draining, removing or removed", func(t *testing.T) {
		t.Parallel()
		for _, from := range []lifecycle.NodeState{lifecycle.NodeDraining, lifecycle.NodeTerminating, lifecycle.NodeRemoving, lifecycle.NodeRemoved} {
			b := setup(t, lifecycle.ActionReissueEnrollment, newWorld(from))
			require.Equal(t, lifecycle.OperationRejected, b.run().Operation.Status)
			require.Equal(t, schema.KindInvalidRequest, b.kindOfRefusal())
		}
	})

	t.Run("polls of the old identity do not end it", func(t *testing.T) {
		t.Parallel()
		b := reissue(t, lifecycle.NodeActive)
		b.signalAt(time.Minute, lifecycle.EventTokenClaimed, 1)
		b.signalAt(time.Minute, lifecycle.EventFirstPoll, 1)
		waited := false
		b.env.RegisterDelayedCallback(func() {
			op := b.status().Operation
			waited = op.Status == lifecycle.OperationRunning && op.Phases[1].State == lifecycle.PhaseRunning
		}, time.Hour)
		b.signalAt(2*time.Hour, lifecycle.EventFirstPoll, 2)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.True(t, waited)
	})

	t.Run("another node's events and a lost claim's signal do not matter", func(t *testing.T) {
		t.Parallel()
		b := reissue(t, lifecycle.NodeOffline)
		b.env.RegisterDelayedCallback(func() {
			b.env.SignalWorkflow(lifecycle.SignalAgent, lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: "other", Incarnation: 9})
		}, time.Minute)
		b.signalAt(time.Hour, lifecycle.EventFirstPoll, 3) // a later one implies the earlier ones
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	})

	t.Run("lost signals cost the budget and nothing else", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.progress = activities.Enrollment{Incarnation: 2, TokenClaimed: true, Polled: true}
		b := setup(t, lifecycle.ActionReissueEnrollment, w)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, w.parks)
	})

	t.Run("the record of the old identity does not end it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.progress = activities.Enrollment{Incarnation: 1, BundleIssued: true, TokenClaimed: true, Polled: true, ReissueIssued: true}
		b := setup(t, lifecycle.ActionReissueEnrollment, w)
		b.decideAt(48*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, lifecycle.PhaseClaim, w.parks[0].Phase)
	})
}

// TestReissueParks exceeds each phase's budget once. A retry completes the phase,
// and so does the event when it arrives late.
func TestReissueParks(t *testing.T) {
	t.Parallel()
	events := []lifecycle.AgentEventName{lifecycle.EventBundleIssued, lifecycle.EventTokenClaimed, lifecycle.EventFirstPoll}
	next := []lifecycle.Decision{lifecycle.DecisionCancel, lifecycle.DecisionCancel, lifecycle.DecisionRetry}
	for i, phase := range []string{lifecycle.PhaseBundle, lifecycle.PhaseClaim, lifecycle.PhasePoll} {
		for name, retry := range map[string]bool{"retried": true, "heals": false} {
			t.Run(phase+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := setup(t, lifecycle.ActionReissueEnrollment, newWorld(lifecycle.NodeOffline))
				for k := range i {
					b.signalAt(time.Minute, events[k], int64(1+min(k, 1)))
				}
				b.env.RegisterDelayedCallback(func() {
					op := b.status().Operation
					require.Equal(t, lifecycle.OperationParked, op.Status)
					require.Equal(t, phase, op.Stuck.Phase)
					require.Equal(t, op.Stuck.Command(next[i], op.Action, "gpu-17", "op-1"), op.Stuck.Next)
					if retry {
						b.decide(lifecycle.DecisionRetry, "the node is back")
					}
				}, 30*time.Hour)
				b.signalAt(30*time.Hour+time.Minute, lifecycle.EventFirstPoll, 2)
				st := b.run()
				require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
				require.Nil(t, st.Operation.Stuck)
				require.Equal(t, lifecycle.PhaseCompleted, st.Operation.Phases[i].State)
				require.Len(t, b.world.parks, 1)
				require.NotContains(t, b.world.story(), "void")
				if retry {
					require.Equal(t, []error{nil}, b.resolved)
				}
			})
		}
	}
}

// TestReissueOfRemovedNode: wherever the reissue waits, running or parked, the
// node's removal ends it, even when its signal was lost.
func TestReissueOfRemovedNode(t *testing.T) {
	t.Parallel()
	events := []lifecycle.AgentEventName{lifecycle.EventBundleIssued, lifecycle.EventTokenClaimed}
	for phases := range 3 {
		for name, removed := range map[string]time.Duration{"running": 2 * time.Minute, "parked": 30 * time.Hour, "signal lost": 0} {
			t.Run(fmt.Sprintf("%s after %d events", name, phases), func(t *testing.T) {
				t.Parallel()
				w := newWorld(lifecycle.NodeRetired)
				b := setup(t, lifecycle.ActionReissueEnrollment, w)
				for k := range phases {
					b.signalAt(time.Minute, events[k], 2)
				}
				if removed > 0 {
					b.signalAt(removed, lifecycle.EventNodeRemoved, 0)
				} else {
					w.progress = activities.Enrollment{Incarnation: 1, Removed: true}
				}
				st := b.run()
				require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
				require.Equal(t, activities.Finish{Status: lifecycle.OperationCanceled, VoidTokens: true,
					Outcome: "the node was removed, which voided the reissued token"}, *w.finished)
				require.Equal(t, lifecycle.NodeRemoved, st.Node.State)
				require.Nil(t, st.Operation.Stuck)
				require.Len(t, w.parks, map[string]int{"parked": 1}[name])
				require.Empty(t, w.decisions)
			})
		}
	}
}

func TestReissueCanceled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event   lifecycle.AgentEventName
		outcome string
	}{
		"before the claim": {lifecycle.EventBundleIssued, "the reissued token is void"},
		"after the claim": {lifecycle.EventTokenClaimed, "the reissued token is void, but the agent already claimed it; " +
			"issue a new one: gpuaas node reissue-enrollment gpu-17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reissue(t, lifecycle.NodeActive)
			b.signalAt(time.Minute, c.event, 2)
			b.decideAt(2*time.Minute, lifecycle.DecisionCancel)
			st := b.run()
			require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
			require.Equal(t, activities.Finish{Status: lifecycle.OperationCanceled, VoidTokens: true, Outcome: c.outcome}, *b.world.finished)
			require.Equal(t, lifecycle.NodeActive, st.Node.State)
			require.NotContains(t, b.world.story(), "void")
		})
	}
	t.Run("skip and force do not fit", func(t *testing.T) {
		t.Parallel()
		b := reissue(t, lifecycle.NodeActive)
		b.decideAt(30*time.Hour, lifecycle.DecisionSkip)
		b.decideAt(31*time.Hour, lifecycle.DecisionForce)
		b.signalAt(32*time.Hour, lifecycle.EventFirstPoll, 2)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Len(t, b.resolved, 2)
		for _, err := range b.resolved {
			require.Equal(t, schema.KindInvalidRequest, kindOf(err))
		}
	})
}

// TestReissueHint checks that the details of a running reissue name the awaited event
// and the command to run.
func TestReissueHint(t *testing.T) {
	t.Parallel()
	b := reissue(t, lifecycle.NodeActive)
	b.signalAt(2*time.Hour, lifecycle.EventFirstPoll, 2)
	plan, _ := lifecycle.PlanOf(b.in.Action, b.in.Options)
	op := &state{in: b.in, plan: plan, phase: 1, status: lifecycle.OperationStatus{Operation: lifecycle.Operation{
		Action: b.in.Action, Status: lifecycle.OperationRunning, DeadlineAt: new(time.Time),
		Phases: []lifecycle.Phase{{Name: lifecycle.PhaseBundle}, {Name: lifecycle.PhaseClaim}},
	}}}
	require.Contains(t, op.markdown(), "gpuaas node reissue-enrollment "+testNode)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
}

func TestEnrollAcrossReissue(t *testing.T) {
	t.Parallel()
	t.Run("the reissued identity's poll ends the enrollment", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
		b.signalAt(time.Minute, lifecycle.EventTokenClaimed, 2)
		b.signalAt(2*time.Minute, lifecycle.EventFirstPoll, 2)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, b.world.parks)
	})
	t.Run("a parked enrollment ends when the agent polls", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
		b.signalAt(time.Minute, lifecycle.EventTokenClaimed, 1)
		b.signalAt(time.Hour, lifecycle.EventFirstPoll, 1)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, lifecycle.PhasePoll, b.world.parks[0].Phase)
		require.Empty(t, b.world.decisions)
	})
}
