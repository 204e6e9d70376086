package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestDrainAfterADeadDrain: the run of a drain ended without an outcome, and its node is
// still draining. Temporal admits one run per node, so the next drain's claim succeeds
// in the state before the dead one, which its own cancel restores.
func TestDrainAfterADeadDrain(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	dead := e.claim(n.ID, lifecycle.ActionDrain)
	left := e.dispatch(dead.Fence, "drain", task.WorkloadDrain)

	second, err := e.Claim(ctx, request(n.ID, lifecycle.ActionDrain))
	require.NoError(t, err)
	require.Equal(t, lifecycle.NodeActive, second.Prior)
	require.Equal(t, lifecycle.NodeDraining, second.State)
	requireKind(t, e.Advance(ctx, dead.Fence, activities.Advance{Phase: "drain"}), schema.KindFenced, "")
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM node_tasks WHERE task_id = $1 AND status = 'cancelled'", left.TaskID))
	require.NoError(t, e.Finish(ctx, second.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: second.Prior}))
	require.Equal(t, lifecycle.NodeActive, e.node(n.ID).State)
}

// TestCordonOfADeadDrain: a dead drain began on a node without a cordon and left one. The
// operations after it know that the cordon is not an operator's, however many runs die.
func TestCordonOfADeadDrain(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n, kept := e.inState(lifecycle.NodeActive), e.inState(lifecycle.NodeActive)
	cordon := func(nodeID string) { e.exec("UPDATE nodes SET cordoned = true WHERE node_id = $1", nodeID) }

	require.False(t, e.claim(n.ID, lifecycle.ActionDrain).LeftCordon, "the first one")
	cordon(n.ID)
	for range 2 {
		next, err := e.Claim(ctx, request(n.ID, lifecycle.ActionDrain))
		require.NoError(t, err)
		require.True(t, next.Cordoned)
		require.True(t, next.LeftCordon)
	}

	cordon(kept.ID)
	require.False(t, e.claim(kept.ID, lifecycle.ActionDrain).LeftCordon)
	next, err := e.Claim(ctx, request(kept.ID, lifecycle.ActionDrain))
	require.NoError(t, err)
	require.False(t, next.LeftCordon, "an operator cordoned the node before")
}

// holders returns every action that holds a node, with each state in which a test can
// start it.
func holders(visit func(p lifecycle.Plan, s lifecycle.NodeState)) {
	for _, p := range lifecycle.Operations() {
		for _, s := range p.From {
			creates := p.Action == lifecycle.ActionProvision && !s.Enrolled() || p.Action == lifecycle.ActionTerminate // needs another provider
			if p.Holds && !creates {
				visit(p, s)
			}
		}
	}
}

// TestClaimAfterEveryDeadRun: every action, after every action whose run ended in each
// state that it enters, abandoned or not yet. Draining and removing have no action of
// their own: the state before counts.
func TestClaimAfterEveryDeadRun(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	holders(func(dead lifecycle.Plan, prior lifecycle.NodeState) {
		for _, next := range lifecycle.Operations() {
			for _, marked := range []bool{false, true} {
				name := []any{"%s after %s of a node that was %s, abandoned %t", next.Action, dead.Action, prior, marked}
				n := e.inState(prior)
				r := request(n.ID, dead.Action)
				before, err := e.Claim(ctx, r)
				require.NoError(t, err, name...)
				if marked {
					require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunTerminated), name...)
				}
				want := before.State
				if want == lifecycle.NodeDraining || want == lifecycle.NodeRemoving {
					want = prior
				}
				_, refusal := lifecycle.CheckStart(next.Action, want)
				got, err := e.Claim(ctx, request(n.ID, next.Action))
				switch {
				case next.Action == lifecycle.ActionReissueEnrollment:
					e.requireReissue(err, n, dead.Action, marked)
				case refusal != nil:
					require.EqualError(t, err, refusal.Error(), name...)
					require.Equal(t, before.State, e.node(n.ID).State, name...)
					require.Equal(t, r.OperationID, e.operations(n.ID, true)[0].OperationID, name...)
				case next.Action == lifecycle.ActionProvision && !want.Enrolled():
					requireKind(t, err, schema.KindInvalidRequest, "not_enrolled")
				case next.Action == lifecycle.ActionTerminate:
					requireKind(t, err, schema.KindInvalidRequest, "no_created_machine")
				default:
					require.NoError(t, err, name...)
					require.Equal(t, want, got.Prior, name...)
					require.Len(t, e.operations(n.ID, true), 1, name...)
					ended, err := e.Operation(ctx, r.OperationID)
					require.NoError(t, err)
					require.Equal(t, lifecycle.OperationFailed, ended.Operation.Status, name...)
					require.Contains(t, ended.Operation.Outcome, got.Fence.OperationID, name...)
					require.Nil(t, ended.Operation.Stuck, name...)
					require.Contains(t, e.audit(n.ID), audit.ActionName(dead.Action)+" failed superseded", name...)
				}
			}
		}
	})
}

// requireReissue requires the outcome of a reissue beside an operation whose run ended.
// The reissue runs under another workflow ID, so its claim proves nothing about the node's.
func (e *env) requireReissue(err error, n wire.NodeView, dead lifecycle.Action, abandoned bool) {
	e.t.Helper()
	reissue, _ := lifecycle.PlanOf(lifecycle.ActionReissueEnrollment, lifecycle.Options{})
	switch {
	case !reissue.ConflictsWith(dead):
		require.NoError(e.t, err)
	case abandoned:
		requireKind(e.t, err, schema.KindOperationInProgress, string(dead)+"_open")
		require.Equal(e.t, "gpuaas node rehydrate "+n.Host, schema.AsError(err).Next)
	default:
		require.Error(e.t, err)
		require.Contains(e.t, []string{"invalid_state", string(dead) + "_open"}, schema.AsError(err).Reason)
	}
}

// TestLateClaimIsFenced: a claim that a dead run sent before its end may arrive after
// the claim of the next run.
func TestLateClaimIsFenced(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	started := time.Now().UTC().Truncate(time.Microsecond)
	claimAt := func(nodeID string, a lifecycle.Action, at time.Time) (activities.ClaimRequest, error) {
		r := request(nodeID, a)
		r.RunStartedAt = at
		_, err := e.Claim(ctx, r)
		return r, err
	}
	for _, a := range []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionReissueEnrollment} {
		n := e.inState(lifecycle.NodeActive)
		holder, err := claimAt(n.ID, a, started)
		require.NoError(t, err)
		before := e.node(n.ID)
		rows := e.changes(n.ID, func() {
			_, err = claimAt(n.ID, a, started.Add(-time.Microsecond))
			requireKind(t, err, schema.KindFenced, "newer_run")
			require.ErrorContains(t, err, holder.OperationID)
		})
		require.Equal(t, []string{audit.ActionName(a) + " refused newer_run"}, rows)
		require.Equal(t, before, e.node(n.ID))
		require.NoError(t, e.Abandon(ctx, holder.OperationID, holder.RunID, lifecycle.RunTerminated))
		_, err = claimAt(n.ID, a, started.Add(-time.Microsecond))
		requireKind(t, err, schema.KindFenced, "newer_run")

		late := holder
		late.RunStartedAt = started.Add(-time.Hour)
		_, err = e.Claim(ctx, late)
		require.NoError(t, err, "the run's own claim, repeated")
		second, err := claimAt(n.ID, a, started.Add(time.Second))
		require.NoError(t, err)
		_, err = claimAt(n.ID, a, time.Time{})
		require.NoError(t, err, "a start that is not known is not compared")
		_, err = e.Claim(ctx, second)
		require.NoError(t, err, "a superseded run reads its claim, and its next write is fenced")
	}
}

// TestClaimExpires: a claim after the operation's limit changes nothing. The limit is
// compared with the database's clock, and a repeated claim is not limited.
func TestClaimExpires(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	started := func(before time.Duration) time.Time {
		var now time.Time
		require.NoError(t, e.raw.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now))
		return now.Add(-before)
	}
	for _, a := range []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionReissueEnrollment} {
		n := e.inState(lifecycle.NodeActive)
		r := request(n.ID, a)
		r.RunStartedAt, r.StartWithinSeconds = started(time.Second), 1
		before := e.node(n.ID)
		_, err := e.Claim(ctx, r)
		requireKind(t, err, schema.KindClaimExpired, "")
		require.Equal(t, "gpuaas node "+string(a)+" "+n.Host, schema.AsError(err).Next)
		require.Equal(t, before, e.node(n.ID))
		require.Empty(t, e.operations(n.ID, false))
		require.Equal(t, 1, count(e.audit(n.ID), audit.ActionName(a)+" refused claim_expired"))

		r.RunStartedAt = started(0)
		first, err := e.Claim(ctx, r)
		require.NoError(t, err)
		r.RunStartedAt = started(time.Hour)
		again, err := e.Claim(ctx, r)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
}
