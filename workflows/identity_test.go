package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// renewing is a reactivation with a new identity. The agent gets its token.
func renewing(t *testing.T) (b *bed, tasks *int) {
	t.Helper()
	w := newWorld(lifecycle.NodeRetired)
	w.progress = activities.Enrollment{Incarnation: 1, Polled: true}
	tasks = new(int)
	w.on[task.NewIdentity] = func(activities.TaskSpec) (task.Result, error) {
		*tasks++
		return succeeded(struct{}{}), nil
	}
	b = setup(t, lifecycle.ActionReactivate, w)
	b.in.Options.NewIdentity = true
	return b, tasks
}

// enrollAt sets the progress of the enrollment and signals its event.
func (b *bed) enrollAt(d time.Duration, event lifecycle.AgentEventName, e activities.Enrollment) {
	b.env.RegisterDelayedCallback(func() {
		b.world.mu.Lock()
		b.world.progress = e
		b.world.mu.Unlock()
		b.report(lifecycle.AgentEvent{Event: event, NodeID: testNode, Incarnation: e.Incarnation})
	}, d)
}

// The reactivation continues with the health check once the agent polls with the new identity.
func TestReactivateWithANewIdentity(t *testing.T) {
	t.Parallel()
	b, tasks := renewing(t)
	b.enrollAt(time.Minute, lifecycle.EventTokenClaimed, activities.Enrollment{Incarnation: 2, TokenClaimed: true})
	b.env.RegisterDelayedCallback(func() {
		require.Equal(t, lifecycle.PhaseRunning, b.status().Operation.Phases[0].State, "the claim is not the end")
	}, 90*time.Second)
	b.enrollAt(2*time.Minute, lifecycle.EventFirstPoll, activities.Enrollment{Incarnation: 2, TokenClaimed: true, Polled: true})
	st := b.run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, lifecycle.NodeActive, st.Node.State)
	require.Equal(t, 1, *tasks)
	require.Equal(t, []string{lifecycle.PhaseIdentity, lifecycle.PhaseProbe, lifecycle.PhaseUncordon, "activate"}, phaseNames(st))
}

func phaseNames(st lifecycle.OperationStatus) (names []string) {
	for _, p := range st.Operation.Phases {
		names = append(names, p.Name)
	}
	return names
}

// Without a first poll the operation parks. A retry sends another token, and none once the
// token is claimed.
func TestNewIdentityParks(t *testing.T) {
	t.Parallel()
	b, tasks := renewing(t)
	parked := 0
	b.env.RegisterDelayedCallback(func() {
		stuck := b.status().Operation.Stuck
		require.NotNil(t, stuck)
		require.Equal(t, string(schema.KindAgentSilent), stuck.Reason)
		require.Equal(t, lifecycle.AttentionAgent, stuck.WaitingOn)
		parked = *tasks
		b.decide(lifecycle.DecisionRetry, "the agent was restarted")
	}, 20*time.Minute)
	b.enrollAt(21*time.Minute, lifecycle.EventTokenClaimed, activities.Enrollment{Incarnation: 2, TokenClaimed: true})
	b.env.RegisterDelayedCallback(func() {
		require.Equal(t, parked+1, *tasks)
		require.NotNil(t, b.status().Operation.Stuck)
		b.decide(lifecycle.DecisionRetry, "the clock was wrong")
	}, 40*time.Minute)
	b.enrollAt(41*time.Minute, lifecycle.EventFirstPoll, activities.Enrollment{Incarnation: 2, TokenClaimed: true, Polled: true})
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Equal(t, parked+1, *tasks)
}

// A cancel leaves the node with the identity that it has, in its previous state.
func TestCancelOfANewIdentity(t *testing.T) {
	t.Parallel()
	b, _ := renewing(t)
	b.env.RegisterDelayedCallback(func() { b.decide(lifecycle.DecisionCancel, "not now") }, time.Minute)
	st := b.run()
	require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
	require.Equal(t, lifecycle.NodeRetired, st.Node.State)
}
