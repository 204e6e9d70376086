package workflows

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// tellAt lets the node API tell of an event of the given incarnation.
func (b *bed) tellAt(d time.Duration, event schema.AgentEventName, incarnation int64) {
	b.env.RegisterDelayedCallback(func() {
		b.env.SignalWorkflow(schema.SignalAgent, schema.AgentEvent{Event: event, NodeID: testNode, Incarnation: incarnation})
	}, d)
}

// reissue is a bed in which the bundle was handed out.
func reissue(t *testing.T, from schema.NodeState) *bed {
	t.Helper()
	b := setup(t, schema.ActionReissueEnrollment, newWorld(from))
	b.tellAt(time.Second, schema.EventBundleIssued, 1)
	return b
}

func TestReissueEnrollment(t *testing.T) {
	t.Parallel()

	t.Run("ends at the first poll with the new identity and changes no state", func(t *testing.T) {
		t.Parallel()
		move, _ := schema.MoveOf(schema.ActionReissueEnrollment)
		for _, from := range move.From {
			b := reissue(t, from)
			b.tellAt(time.Hour, schema.EventTokenClaimed, 2)
			b.tellAt(time.Hour+time.Minute, schema.EventFirstPoll, 2)
			st := b.run()
			require.Equal(t, schema.OperationCompleted, st.Operation.Status)
			require.Equal(t, from, st.Node.State)
			require.Zero(t, st.Operation.OpSeq)
			require.Equal(t, []string{"claim", "advance claim", "advance poll", "finish completed"}, b.world.story())
			require.Equal(t, schema.Finish{Status: schema.OperationCompleted, Outcome: "reissued; its agent polls with the new identity"}, *b.world.finished)
		}
	})

	t.Run("is refused while the node is draining, removing or removed", func(t *testing.T) {
		t.Parallel()
		for _, from := range []schema.NodeState{schema.NodeDraining, schema.NodeRemoving, schema.NodeRemoved} {
			b := setup(t, schema.ActionReissueEnrollment, newWorld(from))
			require.Equal(t, schema.OperationRejected, b.run().Operation.Status)
			require.Equal(t, schema.KindInvalidRequest, b.kindOfRefusal())
		}
	})

	t.Run("polls of the old identity do not end it", func(t *testing.T) {
		t.Parallel()
		b := reissue(t, schema.NodeActive)
		b.tellAt(time.Minute, schema.EventTokenClaimed, 1)
		b.tellAt(time.Minute, schema.EventFirstPoll, 1)
		waited := false
		b.env.RegisterDelayedCallback(func() {
			op := b.status().Operation
			waited = op.Status == schema.OperationRunning && op.Phases[1].State == schema.PhaseRunning
		}, time.Hour)
		b.tellAt(2*time.Hour, schema.EventFirstPoll, 2)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.True(t, waited)
	})

	t.Run("another node's events and a lost claim's signal do not matter", func(t *testing.T) {
		t.Parallel()
		b := reissue(t, schema.NodeOffline)
		b.env.RegisterDelayedCallback(func() {
			b.env.SignalWorkflow(schema.SignalAgent, schema.AgentEvent{Event: schema.EventFirstPoll, NodeID: "other", Incarnation: 9})
		}, time.Minute)
		b.tellAt(time.Hour, schema.EventFirstPoll, 3) // a later one implies the earlier ones
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
	})

	t.Run("lost signals cost the budget and nothing else", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.progress = schema.EnrollmentProgress{Incarnation: 2, TokenClaimed: true, Polled: true}
		b := setup(t, schema.ActionReissueEnrollment, w)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, w.parks)
	})

	t.Run("the record of the old identity does not end it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.progress = schema.EnrollmentProgress{Incarnation: 1, BundleIssued: true, TokenClaimed: true, Polled: true, ReissueIssued: true}
		b := setup(t, schema.ActionReissueEnrollment, w)
		b.decideAt(48*time.Hour, schema.DecisionCancel)
		require.Equal(t, schema.OperationCancelled, b.run().Operation.Status)
		require.Equal(t, schema.PhaseClaim, w.parks[0].Phase)
	})
}

// TestReissueParks lets each phase run out of time once. A retry brings it to
// its end, and so does the event when it comes late.
func TestReissueParks(t *testing.T) {
	t.Parallel()
	events := []schema.AgentEventName{schema.EventBundleIssued, schema.EventTokenClaimed, schema.EventFirstPoll}
	next := []string{"gpuaas op cancel gpu-17 --reissue --reason TEXT", "gpuaas op cancel gpu-17 --reissue --reason TEXT",
		"gpuaas op retry gpu-17 --reissue --reason TEXT"}
	for i, phase := range []string{schema.PhaseBundle, schema.PhaseClaim, schema.PhasePoll} {
		for name, retry := range map[string]bool{"retried": true, "heals": false} {
			t.Run(phase+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := setup(t, schema.ActionReissueEnrollment, newWorld(schema.NodeOffline))
				for k := range i {
					b.tellAt(time.Minute, events[k], int64(1+min(k, 1)))
				}
				b.env.RegisterDelayedCallback(func() {
					op := b.status().Operation
					require.Equal(t, schema.OperationParked, op.Status)
					require.Equal(t, phase, op.Stuck.Phase)
					require.Equal(t, next[i], op.Stuck.Next)
					if retry {
						b.decide(schema.DecisionRetry, "the node is back")
					}
				}, 30*time.Hour)
				b.tellAt(30*time.Hour+time.Minute, schema.EventFirstPoll, 2)
				st := b.run()
				require.Equal(t, schema.OperationCompleted, st.Operation.Status)
				require.Nil(t, st.Operation.Stuck)
				require.Equal(t, schema.PhaseCompleted, st.Operation.Phases[i].State)
				require.Len(t, b.world.parks, 1)
				require.NotContains(t, b.world.story(), "void")
				if retry {
					require.Equal(t, []error{nil}, b.resolved)
				}
			})
		}
	}
}

// TestReissueOfARemovedNode: wherever the reissue waits, running or parked, the
// node's removal ends it, also when its signal was lost.
func TestReissueOfARemovedNode(t *testing.T) {
	t.Parallel()
	events := []schema.AgentEventName{schema.EventBundleIssued, schema.EventTokenClaimed}
	for phases := range 3 {
		for name, removed := range map[string]time.Duration{"running": 2 * time.Minute, "parked": 30 * time.Hour, "signal lost": 0} {
			t.Run(fmt.Sprintf("%s after %d events", name, phases), func(t *testing.T) {
				t.Parallel()
				w := newWorld(schema.NodeRetired)
				b := setup(t, schema.ActionReissueEnrollment, w)
				for k := range phases {
					b.tellAt(time.Minute, events[k], 2)
				}
				if removed > 0 {
					b.tellAt(removed, schema.EventNodeRemoved, 0)
				} else {
					w.progress = schema.EnrollmentProgress{Incarnation: 1, Removed: true}
				}
				st := b.run()
				require.Equal(t, schema.OperationCancelled, st.Operation.Status)
				require.Equal(t, schema.Finish{Status: schema.OperationCancelled, VoidTokens: true,
					Outcome: "cancelled: the node was removed, and the reissued token is void with it"}, *w.finished)
				require.Equal(t, schema.NodeRemoved, st.Node.State)
				require.Nil(t, st.Operation.Stuck)
				require.Len(t, w.parks, map[string]int{"parked": 1}[name])
				require.Empty(t, w.decisions)
			})
		}
	}
}

func TestReissueCancelled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event   schema.AgentEventName
		outcome string
	}{
		"before the claim": {schema.EventBundleIssued, "cancelled; the reissued token is void"},
		"after the claim": {schema.EventTokenClaimed, "cancelled; the reissued token is void; " +
			"the node's agent had claimed it, so it needs another: gpuaas node reissue-enrollment gpu-17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reissue(t, schema.NodeActive)
			b.tellAt(time.Minute, c.event, 2)
			b.decideAt(2*time.Minute, schema.DecisionCancel)
			st := b.run()
			require.Equal(t, schema.OperationCancelled, st.Operation.Status)
			require.Equal(t, schema.Finish{Status: schema.OperationCancelled, VoidTokens: true, Outcome: c.outcome}, *b.world.finished)
			require.Equal(t, schema.NodeActive, st.Node.State)
			require.NotContains(t, b.world.story(), "void")
		})
	}
	t.Run("skip and force do not fit", func(t *testing.T) {
		t.Parallel()
		b := reissue(t, schema.NodeActive)
		b.decideAt(30*time.Hour, schema.DecisionSkip)
		b.decideAt(31*time.Hour, schema.DecisionForce)
		b.tellAt(32*time.Hour, schema.EventFirstPoll, 2)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Len(t, b.resolved, 2)
		for _, err := range b.resolved {
			require.Equal(t, schema.KindInvalidRequest, kindOf(err))
		}
	})
}

// TestReissueSaysWhatToDo: until the node is back the operation says what it
// waits for and what to type.
func TestReissueSaysWhatToDo(t *testing.T) {
	t.Parallel()
	b := reissue(t, schema.NodeActive)
	b.tellAt(2*time.Hour, schema.EventFirstPoll, 2)
	op := &operation{in: b.in, phase: 1, status: schema.OperationStatus{Operation: schema.Operation{
		Action: b.in.Action, Status: schema.OperationRunning, DeadlineAt: new(time.Time),
		Phases: []schema.Phase{{Name: schema.PhaseBundle}, {Name: schema.PhaseClaim}},
	}}}
	require.Contains(t, op.markdown(), "gpuaas node reissue-enrollment "+testNode)
	require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
}

func TestEnrollAcrossAReissue(t *testing.T) {
	t.Parallel()
	t.Run("the reissued identity's poll ends the enrolment", func(t *testing.T) {
		t.Parallel()
		b := setup(t, schema.ActionEnroll, newWorld(schema.NodeRegistered))
		b.tellAt(time.Minute, schema.EventTokenClaimed, 2)
		b.tellAt(2*time.Minute, schema.EventFirstPoll, 2)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, b.world.parks)
	})
	t.Run("a parked enrolment ends by itself when the agent polls after all", func(t *testing.T) {
		t.Parallel()
		b := setup(t, schema.ActionEnroll, newWorld(schema.NodeRegistered))
		b.tellAt(time.Minute, schema.EventTokenClaimed, 1)
		b.tellAt(time.Hour, schema.EventFirstPoll, 1)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, schema.PhasePoll, b.world.parks[0].Phase)
		require.Empty(t, b.world.decisions)
	})
}
