package rotation_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
)

// inPhase returns a rotation of a kind in one of its phases, in which all is published.
func inPhase(k rotation.Kind, p rotation.Phase, now time.Time) rotation.Rotation {
	r := rotation.Begin(k, "g1", time.Hour)
	r.Phase, r.NewKey, r.PhaseSince, r.SetVersion = p, "g2", now, 7
	r.CA = rotation.CA{Bundle: "b", Issuer: "CN=ca", IssuerKey: "00"}
	return r
}

// TestNodeCAGates: each phase of a rotation of the node CA waits for its conditions, and for
// no others.
func TestNodeCAGates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	some := rotation.Progress{Nodes: 3, Confirmed: 1, Waived: 1, Replicas: 2, Reloaded: 1}
	all := rotation.Progress{Nodes: 3, Confirmed: 2, Waived: 1, OpenTasks: 5, Replicas: 2, Reloaded: 2}
	for phase, gate := range map[rotation.Phase][]rotation.Blocker{
		rotation.Stage:    {rotation.BlockedReload, rotation.BlockedNodes},
		rotation.Activate: {rotation.BlockedNodes},
		rotation.Grace:    {rotation.BlockedNodes, rotation.BlockedGrace, rotation.BlockedApproval},
		rotation.Retire:   {rotation.BlockedReload, rotation.BlockedNodes},
		rotation.Restore:  {rotation.BlockedNodes},
		rotation.Remove:   {rotation.BlockedReload, rotation.BlockedNodes},
	} {
		r := inPhase(rotation.NodeCA, phase, now)
		require.Equal(t, gate, r.Blockers(some, now), phase)
		r.Approved = true
		require.Empty(t, r.Blockers(all, now.Add(time.Hour)), "%s: no open task needs the CA", phase)
		r.CA = rotation.CA{}
		require.Equal(t, rotation.BlockedSet, r.Blockers(all, now.Add(time.Hour))[0], phase)
	}
	for _, replicas := range [][2]int{{0, 0}, {3, 0}, {3, 2}} {
		p := all
		p.Replicas, p.Reloaded = replicas[0], replicas[1]
		require.Equal(t, []rotation.Blocker{rotation.BlockedReload}, inPhase(rotation.NodeCA, rotation.Stage, now).Blockers(p, now), replicas)
	}
	require.Empty(t, inPhase(rotation.TaskKey, rotation.Stage, now).Blockers(all, now), "other kinds do not wait for replicas")
}

// TestNodeCAAsks: nodes confirm by their bundle in the phases that change it, and by their
// certificate in the others. No phase publishes a verifier set.
func TestNodeCAAsks(t *testing.T) {
	t.Parallel()
	for _, p := range rotation.Phases(rotation.NodeCA) {
		r := inPhase(rotation.NodeCA, p.Name, time.Now())
		bundle, issuer := r.Asked()
		if p.Name == rotation.Activate || p.Name == rotation.Grace {
			require.Equal(t, "CN=ca", issuer)
			require.Empty(t, bundle)
		} else {
			require.Equal(t, "b", bundle)
			require.Empty(t, issuer)
		}
		_, publishes := r.Target("task-dev.v1")
		require.False(t, publishes)
	}
	bundle, issuer := inPhase(rotation.SetRoot, rotation.Stage, time.Now()).Asked()
	require.Empty(t, bundle+issuer)
}

// TestRollback: every phase but the last leads back, and the last one says that it does not.
func TestRollback(t *testing.T) {
	t.Parallel()
	for _, k := range rotation.Kinds() {
		for phase, back := range map[rotation.Phase]rotation.Phase{
			rotation.Stage: rotation.Remove, rotation.Activate: rotation.Restore, rotation.Grace: rotation.Restore,
			rotation.Restore: rotation.Restore, rotation.Remove: rotation.Remove,
		} {
			r, err := inPhase(k, phase, time.Now()).Decide(rotation.Rollback, time.Now())
			require.NoError(t, err, "%s %s", k, phase)
			require.Equal(t, back, r.Phase, "%s %s", k, phase)
			if phase != back {
				require.False(t, r.Published(), "the phase publishes what it needs")
			}
		}
		_, err := inPhase(k, rotation.Retire, time.Now()).Decide(rotation.Rollback, time.Now())
		require.Equal(t, "not_reversible", schema.AsError(err).Reason)
	}
}

// TestAdvance: a phase that keeps what the one before published does not publish again.
func TestAdvance(t *testing.T) {
	t.Parallel()
	r := inPhase(rotation.NodeCA, rotation.Stage, time.Now())
	var phases []rotation.Phase
	for r.EndedAt == nil {
		phases = append(phases, r.Phase)
		r = r.Advance(time.Now())
		require.Equal(t, r.Phase == rotation.Grace, r.CA.Bundle != "" && r.EndedAt == nil, r.Phase)
		if r.EndedAt == nil {
			r.CA = rotation.CA{Bundle: "b", Issuer: "CN=ca"}
		}
	}
	require.Equal(t, []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace, rotation.Retire}, phases)
	require.Equal(t, rotation.Completed, r.Outcome)
}

// TestPlanOfARollback: a view of a rollback lists its phases, which a rotation does not have.
func TestPlanOfARollback(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for phase, plan := range map[rotation.Phase][]rotation.Phase{
		rotation.Grace:   {rotation.Stage, rotation.Activate, rotation.Grace, rotation.Retire},
		rotation.Restore: {rotation.Restore, rotation.Remove},
		rotation.Remove:  {rotation.Remove},
	} {
		var names []rotation.Phase
		for _, p := range rotation.Describe(inPhase(rotation.TaskKey, phase, now), rotation.Progress{}, now).Plan {
			names = append(names, p.Name)
		}
		require.Equal(t, plan, names, phase)
	}
}

// TestResumeOfARollback: a rollback goes forward again if Vault has retired the old key, and not if
// it was paused or its workflow is started again.
func TestResumeOfARollback(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for phase, forward := range map[rotation.Phase]rotation.Phase{
		rotation.Restore: rotation.Activate, rotation.Remove: rotation.Stage, rotation.Activate: rotation.Activate, rotation.Grace: rotation.Grace,
	} {
		r := inPhase(rotation.TaskKey, phase, now)
		r.Paused = true
		_, err := r.Decide(rotation.Approve, now)
		require.Equal(t, phase == rotation.Restore || phase == rotation.Remove, err != nil, "a rollback needs no approval")
		unpaused, err := r.Decide(rotation.Resume, now)
		require.NoError(t, err)
		require.Equal(t, phase, unpaused.Phase)
		require.False(t, unpaused.Paused)
		again, err := unpaused.Decide(rotation.Resume, now)
		require.NoError(t, err)
		require.Equal(t, phase, again.Phase)
		for _, other := range []error{rotation.ErrCARetired("g2"), schema.NewError(schema.KindInternal, "Vault has retired its storage")} {
			unpaused.Failure = rotation.FailureOf(other)
			again, err = unpaused.Decide(rotation.Resume, now)
			require.NoError(t, err)
			require.Equal(t, phase, again.Phase, unpaused.Failure)
		}
		unpaused.Failure = rotation.FailureOf(rotation.ErrKeyRetired("task-dev.v1"))
		resumed, err := unpaused.Decide(rotation.Resume, now)
		require.NoError(t, err)
		require.Equal(t, forward, resumed.Phase)
	}
}

// TestStalledRotation: a rotation at which nothing looks waits for a worker, whatever else it waits for.
func TestStalledRotation(t *testing.T) {
	t.Parallel()
	now := time.Date(2041, 3, 1, 0, 0, 0, 0, time.UTC)
	r := inPhase(rotation.TaskKey, rotation.Activate, now)
	for age, want := range map[time.Duration][]rotation.Blocker{
		rotation.Stalled: {}, rotation.Stalled + time.Second: {rotation.BlockedWorker},
	} {
		r.CheckedAt = now.Add(-age)
		require.Equal(t, want, rotation.Describe(r, rotation.Progress{}, now).Blockers)
	}
	r.EndedAt = &now
	require.Empty(t, rotation.Describe(r, rotation.Progress{}, now).Blockers)
}
