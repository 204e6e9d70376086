package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

var rehydrator = audit.Subject{Actor: "bob@ops", Via: "api", CorrelationID: "corr-9"}

// opened claims an operation with its document, as a workflow does.
func (e *env) opened(nodeID string, a lifecycle.Action, o lifecycle.Options) (activities.ClaimRequest, activities.Claim) {
	e.t.Helper()
	r := request(nodeID, a)
	r.Options = o
	r.Document = &lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: r.OperationID, Action: a, Options: o}}
	c, err := e.Claim(e.t.Context(), r)
	require.NoError(e.t, err)
	return r, c
}

// abandoned opens an operation and abandons it.
func (e *env) abandoned(nodeID string, a lifecycle.Action) (activities.ClaimRequest, activities.Claim) {
	e.t.Helper()
	r, c := e.opened(nodeID, a, lifecycle.Options{})
	require.NoError(e.t, e.Abandon(e.t.Context(), r.OperationID, r.RunID, lifecycle.RunTerminated))
	require.Equal(e.t, lifecycle.OperationAbandoned, e.status(r.OperationID).Status)
	return r, c
}

// Abandon is store.Operations.Abandon without the result.
func (e *env) Abandon(ctx context.Context, operationID, runID string, end lifecycle.RunEnd) error {
	_, err := e.Operations.Abandon(ctx, operationID, runID, end)
	return err
}

func (e *env) status(operationID string) lifecycle.Operation {
	e.t.Helper()
	st, err := e.Operation(e.t.Context(), operationID)
	require.NoError(e.t, err)
	return st.Operation
}

func (e *env) stuckList() []wire.StuckOperation {
	e.t.Helper()
	stuck, _, err := e.ListStuck(e.t.Context(), adminapi.OperationQuery{Page: all})
	require.NoError(e.t, err)
	return stuck
}

// TestAbandonEveryAction: every action, in each state in which it starts, is abandoned
// and its end accepted. Afterwards the node is in a state in which an action can start.
func TestAbandonEveryAction(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	ends := lifecycle.RunEnds()
	holders(func(p lifecycle.Plan, prior lifecycle.NodeState) {
		name := fmt.Sprintf("%s of a node that was %s", p.Action, prior)
		n := e.inState(prior)
		r, c := e.opened(n.ID, p.Action, lifecycle.Options{})
		end := ends[int(e.hosts.Load())%len(ends)]
		rows := e.changes(n.ID, func() {
			for range 2 {
				require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, end), name)
			}
		})
		require.Equal(t, []string{audit.ActionName(p.Action) + " parked " + string(end)}, rows, name)
		last := e.chain(n.ID)[len(e.chain(n.ID))-1]
		require.Equal(t, "system", last.Actor)
		require.Equal(t, r.OperationID, last.OperationID)

		after := e.node(n.ID)
		require.Equal(t, c.State, after.State, "%s: the state is not changed", name)
		require.Equal(t, after.State.Without(prior), after.StartState(), name)
		require.NotEmpty(t, lifecycle.ActionsIn(after.StartState()), "%s: an action can start", name)
		op := e.status(r.OperationID)
		require.Equal(t, lifecycle.OperationAbandoned, op.Status, name)
		require.Nil(t, op.EndedAt, name)
		require.Nil(t, op.DeadlineAt, name)
		require.Equal(t, p.Phases[0].Name, op.Stuck.Phase, name)
		require.Equal(t, string(end), op.Stuck.Reason, name)
		require.Equal(t, lifecycle.AttentionOperator, op.Stuck.WaitingOn, name)
		require.Equal(t, "gpuaas node rehydrate "+n.Host, op.Stuck.Next, name)
		require.Equal(t, lifecycle.PhaseFailed, op.Phases[0].State, name)
		require.True(t, slices.ContainsFunc(e.stuckList(), func(s wire.StuckOperation) bool { return s.OperationID == r.OperationID }), name)
		for _, o := range op.Stuck.Options[1:] {
			require.Equal(t, lifecycle.DecisionRestart, o.Decision)
			require.Contains(t, p.From, after.State.Without(prior), "%s: the restart is possible", name)
		}

		got, err := e.AcceptAbandoned(ctx, n.ID, "terminated by mistake", rehydrator)
		require.NoError(t, err, name)
		restored := c.State
		if restored == lifecycle.NodeDraining || restored == lifecycle.NodeRemoving {
			restored = prior
		}
		require.Equal(t, restored, e.node(n.ID).State, name)
		require.Equal(t, c.State, got.From, name)
		require.Equal(t, lifecycle.NodeRef{NodeID: n.ID, Host: n.Host, State: restored}, got.Node, name)
		require.Len(t, got.Ended, 1, name)
		require.Equal(t, r.OperationID, got.Ended[0].OperationID, name)
		require.NotEmpty(t, lifecycle.ActionsIn(e.node(n.ID).State), "%s: no action can start", name)
	})
}

// TestAbandonedDrain follows one operation: its tasks, its row, its document and its
// audit rows.
func TestAbandonedDrain(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	id := caller.NodeID
	r, c := e.opened(id, lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 1800})
	running := e.held(caller, c.Fence, "drain", task.WorkloadDrain)
	pending := e.dispatch(c.Fence, "probe", task.NodeProbe)
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- l.Run(ctx) }()
	wake, cancel := l.Subscribe(id, caller.Incarnation)
	defer cancel()
	<-wake // the listener's connection

	rows := e.changes(id, func() {
		require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunLost))
	})
	voided := fmt.Sprintf("tasks.finished %s voided", task.Canceled)
	require.ElementsMatch(t, []string{"nodes.drain parked run_lost", voided, voided}, rows)
	<-wake
	e.takeNone(caller)
	canceled, err := e.CanceledTasks(ctx, caller, []string{running.TaskID})
	require.NoError(t, err)
	require.Equal(t, []string{running.TaskID}, canceled, "the agent stops the task that it runs")
	require.Equal(t, task.Canceled, e.task(pending.TaskID).Status)
	counts, err := e.StuckCounts(ctx)
	require.NoError(t, err)
	require.Equal(t, []metrics.StuckCount{{Phase: "cordon", Reason: "run_lost", Operations: 1}}, counts)
	require.Equal(t, "gpuaas node drain "+caller.Host+" --deadline 30m0s", e.status(r.OperationID).Stuck.Options[1].Command)
	require.Empty(t, e.changes(id, func() {
		require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunLost))
	}), "a second call changes nothing")

	requireKind(t, e.enqueueLate(c.Fence), schema.KindServiceUnavailable, "operation_abandoned")
	// The reclaimer voids a task that was stored nevertheless.
	e.exec("UPDATE operations SET status = 'parked' WHERE operation_id = $1", r.OperationID)
	late := e.dispatch(c.Fence, "late", task.WorkloadDrain)
	e.exec("UPDATE operations SET status = 'abandoned' WHERE operation_id = $1", r.OperationID)
	require.Equal(t, map[string]activities.ReclaimResult{late.TaskID: activities.ReclaimVoided}, e.reclaim())

	var done []lifecycle.Rehydration
	rows = e.changes(id, func() {
		for range 2 {
			got, err := e.AcceptAbandoned(ctx, id, "terminated by mistake", rehydrator)
			require.NoError(t, err)
			done = append(done, got)
		}
	})
	require.Equal(t, []string{"nodes.rehydrate succeeded terminated by mistake", "nodes.drain failed run_lost"}, rows)
	const outcome = "its run ended: run_lost; the node's state was restored: active"
	require.Equal(t, []lifecycle.EndedOperation{{OperationID: r.OperationID, Action: lifecycle.ActionDrain, Reason: lifecycle.RunLost, Outcome: outcome}}, done[0].Ended)
	require.Empty(t, done[1].Ended, "a repeated call finds nothing open")
	require.Equal(t, lifecycle.NodeActive, done[1].Node.State)
	chain := e.chain(id)
	accepted := chain[len(chain)-2]
	require.Equal(t, []string{"bob@ops", "api", "corr-9", r.OperationID}, []string{accepted.Actor, accepted.Via, accepted.CorrelationID, accepted.OperationID})
	require.Equal(t, map[string]string{"from": "draining", "to": "active", "outcome": outcome}, accepted.Detail)
	op := e.status(r.OperationID)
	require.Equal(t, lifecycle.OperationFailed, op.Status)
	require.Equal(t, outcome, op.Outcome)
	require.Nil(t, op.Stuck)
	require.NotNil(t, op.EndedAt)
	require.Nil(t, e.node(id).Operation)
	require.Zero(t, e.number("SELECT count(*) FROM nodes WHERE node_id = $1 AND operation_id IS NOT NULL", id))
	require.Empty(t, e.stuckList())
	requireKind(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "drain"}), schema.KindFenced, "operation_over")
	requireKind(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCompleted}), schema.KindFenced, "operation_over")
	_, err = e.Prepare(ctx, spec(c.Fence, "zombie", task.NodeProbe), taskOwner("zombie"))
	requireKind(t, err, schema.KindFenced, "")
}

// TestAbandonIsFenced: only the newest run of an open operation abandons it.
func TestAbandonIsFenced(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	r, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
	unchanged := func(runID string) {
		t.Helper()
		before := e.status(r.OperationID)
		require.Empty(t, e.changes(n.ID, func() {
			require.NoError(t, e.Abandon(ctx, r.OperationID, runID, lifecycle.RunTerminated))
		}))
		require.Equal(t, before, e.status(r.OperationID))
	}
	unchanged("another")
	unchanged("")
	marked, err := e.Operations.Abandon(ctx, r.OperationID, "another", lifecycle.RunTerminated)
	require.NoError(t, err)
	require.False(t, marked)
	requireKind(t, e.Abandon(ctx, r.OperationID, r.RunID, ""), schema.KindInvalidRequest, "")
	requireKind(t, e.Abandon(ctx, r.OperationID, r.RunID, "run_away"), schema.KindInvalidRequest, "")
	for _, unknown := range []string{schema.NewID(), "", "op-1"} {
		requireKind(t, e.Abandon(ctx, unknown, r.RunID, lifecycle.RunLost), schema.KindNotFound, "")
	}
	advance := func(run string, step int64) {
		t.Helper()
		require.NoError(t, e.Operations.Advance(ctx, c.Fence, run, activities.Advance{Step: step, Phase: "drain"}))
	}
	advance("reset", 1)
	unchanged(r.RunID)
	require.NoError(t, e.Abandon(ctx, r.OperationID, "reset", lifecycle.RunFailed))
	require.Equal(t, lifecycle.OperationAbandoned, e.status(r.OperationID).Status)

	advance("second reset", 2)
	requireContinued(t, e.status(r.OperationID))
	require.NoError(t, e.Abandon(ctx, r.OperationID, "second reset", lifecycle.RunFailed))
	advance("second reset", 3)
	require.Equal(t, lifecycle.OperationRunning, e.status(r.OperationID).Status, "the run was open after all")
	require.NoError(t, e.Abandon(ctx, r.OperationID, "second reset", lifecycle.RunFailed))
	require.NoError(t, e.Operations.Finish(ctx, c.Fence, "second reset", activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained}))
	require.Equal(t, lifecycle.NodeDrained, e.node(n.ID).State)
	unchanged("second reset")
	unchanged("")
	require.Equal(t, lifecycle.OperationCompleted, e.status(r.OperationID).Status)
}

// requireContinued requires an operation that is not abandoned, neither in its row nor in
// its document.
func requireContinued(t *testing.T, op lifecycle.Operation) {
	t.Helper()
	require.Equal(t, lifecycle.OperationRunning, op.Status, "a run that an operator reset continues the operation")
	require.Nil(t, op.Stuck)
	for _, p := range op.Phases {
		require.NotEqual(t, lifecycle.PhaseFailed, p.State)
		require.Empty(t, p.Reason)
	}
}

// TestResetRunContinues: each write of a reset run that has no document continues the
// operation in its row and in its document.
func TestResetRunContinues(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	writes := map[string]func(c activities.Claim, run string) error{
		"advance": func(c activities.Claim, run string) error {
			return e.Operations.Advance(ctx, c.Fence, run, activities.Advance{Step: 1, Phase: "drain"})
		},
		"task": func(c activities.Claim, run string) error {
			s := spec(c.Fence, "drain", task.WorkloadDrain)
			s.Clock = 1
			_, err := e.Prepare(ctx, s, task.Owner{WorkflowID: "wf", RunID: run, ActivityID: "drain"})
			return err
		},
	}
	for name, write := range writes {
		n := e.inState(lifecycle.NodeActive)
		r, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
		e.dispatch(c.Fence, "drain", task.WorkloadDrain)
		before := e.status(r.OperationID)
		require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunTerminated))
		require.Equal(t, lifecycle.PhaseFailed, e.status(r.OperationID).Phases[0].State)
		require.NoError(t, write(c, "reset"), name)
		op := e.status(r.OperationID)
		requireContinued(t, op)
		require.Equal(t, before.Phases, op.Phases, name)
		require.Equal(t, "reset", op.RunID, name)
		require.Equal(t, "running", e.text("SELECT document #>> '{operation,status}' FROM operations WHERE operation_id = $1", r.OperationID), name)
	}
}

// TestWatchedOperations lists the open operations whose runs the watch reads.
func TestWatchedOperations(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	var open []string
	node := e.inState(lifecycle.NodeActive)
	for range 4 {
		r, _ := e.opened(e.inState(lifecycle.NodeActive).ID, lifecycle.ActionDrain, lifecycle.Options{})
		open = append(open, r.OperationID)
	}
	holds, c := e.opened(node.ID, lifecycle.ActionProvision, lifecycle.Options{})
	reissue, _ := e.opened(node.ID, lifecycle.ActionReissueEnrollment, lifecycle.Options{})
	require.NoError(t, e.Operations.Advance(ctx, c.Fence, "newest", activities.Advance{Step: 1, Phase: "boot"}))
	over := e.claim(e.inState(lifecycle.NodeActive).ID, lifecycle.ActionUncordon).Fence
	require.NoError(t, e.Finish(ctx, over, activities.Finish{Status: lifecycle.OperationCompleted}))
	known, _ := e.abandoned(e.inState(lifecycle.NodeActive).ID, lifecycle.ActionDrain)
	ids := func(ops []activities.WatchedOperation, err error) (list []string) {
		t.Helper()
		require.NoError(t, err)
		for _, op := range ops {
			list = append(list, op.Operation.OperationID)
		}
		return list
	}
	require.Empty(t, ids(e.Watched(ctx, "", 100)), "too young")
	e.exec("UPDATE operations SET started_at = now() - make_interval(secs => $1)", lifecycle.WatchGrace.Seconds()+1)
	open = append(open, holds.OperationID, reissue.OperationID, known.OperationID)
	slices.Sort(open)
	require.Equal(t, open, ids(e.Watched(ctx, "", 100)))
	require.Equal(t, open[:2], ids(e.Watched(ctx, "", 2)))
	require.Equal(t, open[2:4], ids(e.Watched(ctx, open[1], 2)))
	require.Empty(t, ids(e.Watched(ctx, open[6], 2)))

	held, err := e.OpenOperations(ctx, node.ID)
	require.Equal(t, []string{holds.OperationID, reissue.OperationID}, ids(held, err))
	require.Equal(t, "newest", held[0].Operation.RunID)
	require.Equal(t, reissue.RunID, held[1].Operation.RunID)
	require.Equal(t, lifecycle.NodeWorkflowID(node.Host, node.ID), held[0].Operation.WorkflowID)
	require.Equal(t, lifecycle.ReissueWorkflowID(node.Host, node.ID), held[1].Operation.WorkflowID)
	require.Equal(t, []string{node.ID, node.Host}, []string{held[0].NodeID, held[0].Host})
	require.Equal(t, lifecycle.ActionProvision, held[0].Operation.Action)
	require.NoError(t, e.Abandon(ctx, holds.OperationID, "newest", lifecycle.RunLost))
	require.Equal(t, []string{holds.OperationID, reissue.OperationID}, ids(e.OpenOperations(ctx, node.ID)), "an abandoned one is open")
	require.Empty(t, ids(e.OpenOperations(ctx, schema.NewID())))
	_, err = e.OpenOperations(ctx, "gpu-17")
	requireKind(t, err, schema.KindNotFound, "")
}

func TestAcceptAbandonedIsRefused(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	for _, id := range []string{schema.NewID(), "gpu-17", ""} {
		_, err := e.AcceptAbandoned(ctx, id, "x", rehydrator)
		requireKind(t, err, schema.KindNotFound, "")
	}
	require.Equal(t, 3, count(e.audit(audit.SystemStream), "nodes.rehydrate refused not_found"))

	n := e.inState(lifecycle.NodeActive)
	require.Empty(t, e.changes(n.ID, func() {
		got, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
		require.NoError(t, err)
		require.Empty(t, got.Ended)
		require.NotNil(t, got.Ended, "an empty list on the wire")
	}), "there is nothing to accept")

	r, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
	before := e.node(n.ID)
	rows := e.changes(n.ID, func() {
		_, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
		requireKind(t, err, schema.KindInvalidRequest, "not_abandoned")
		require.ErrorContains(t, err, r.OperationID)
		require.Equal(t, "gpuaas op show "+n.Host, schema.AsError(err).Next)
	})
	require.Equal(t, []string{"nodes.rehydrate refused not_abandoned"}, rows)
	require.Equal(t, before, e.node(n.ID))
	require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "drain"}), "it runs on")
}

// TestRehydrateKeepsNewerState: a state in which an action can start is not replaced by
// an older one, and removal is final.
func TestRehydrateKeepsNewerState(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	for _, changed := range []lifecycle.NodeState{lifecycle.NodeOffline, lifecycle.NodeRemoved} {
		n := e.inState(lifecycle.NodeActive)
		r, _ := e.abandoned(n.ID, lifecycle.ActionRetire)
		e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", n.ID, changed)
		got, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
		require.NoError(t, err)
		require.Equal(t, changed, got.Node.State)
		require.Equal(t, changed, e.node(n.ID).State)
		require.Equal(t, "its run ended: run_terminated; the node stays "+string(changed), e.status(r.OperationID).Outcome)
	}
}

// TestRehydrateWithoutOperation: a node in a state that only an operation ends, which no operation holds, returns
// to the state before its last operation, and to quarantined if none is on record.
func TestRehydrateWithoutOperation(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	for _, state := range []lifecycle.NodeState{lifecycle.NodeTerminating, lifecycle.NodeRemoving, lifecycle.NodeDraining} {
		known, unknown := e.inState(lifecycle.NodeDrained), e.inState(state)
		_, c := e.opened(known.ID, lifecycle.ActionRetire, lifecycle.Options{})
		require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationFailed, Node: state}))
		for id, want := range map[string]lifecycle.NodeState{known.ID: lifecycle.NodeDrained, unknown.ID: lifecycle.NodeQuarantined} {
			rows := e.changes(id, func() {
				got, err := e.AcceptAbandoned(ctx, id, "lost in a restore", rehydrator)
				require.NoError(t, err)
				require.Equal(t, []lifecycle.NodeState{state, want}, []lifecycle.NodeState{got.From, got.Node.State})
				require.Empty(t, got.Ended)
			})
			require.Equal(t, want, e.node(id).State)
			require.Equal(t, []string{"nodes.rehydrate succeeded lost in a restore"}, rows)
			require.Empty(t, e.changes(id, func() {
				_, err := e.AcceptAbandoned(ctx, id, "x", rehydrator)
				require.NoError(t, err)
			}), "a repeated call changes nothing")
		}
	}
}

// TestAbandonedReissue: a reissue does not hold its node, so its end changes nothing of
// the node or of the operation that does.
func TestAbandonedReissue(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	reissue, _ := e.abandoned(n.ID, lifecycle.ActionReissueEnrollment)
	stuck := e.status(reissue.OperationID).Stuck
	require.Equal(t, "gpuaas node reissue-enrollment "+n.Host, stuck.Options[1].Command)
	_, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
	got, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
	require.NoError(t, err)
	require.Len(t, got.Ended, 1)
	require.Equal(t, reissue.OperationID, got.Ended[0].OperationID)
	require.Equal(t, lifecycle.NodeDraining, got.Node.State)
	require.Equal(t, lifecycle.NodeDraining, e.node(n.ID).State)
	require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "drain"}), "the drain still holds the node")

	require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeActive}))
	second, _ := e.abandoned(n.ID, lifecycle.ActionReissueEnrollment)
	holds, _ := e.abandoned(n.ID, lifecycle.ActionRetire)
	got, err = e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
	require.NoError(t, err)
	require.Equal(t, []string{holds.OperationID, second.OperationID}, []string{got.Ended[0].OperationID, got.Ended[1].OperationID})

	third, _ := e.abandoned(n.ID, lifecycle.ActionReissueEnrollment)
	e.opened(n.ID, lifecycle.ActionReissueEnrollment, lifecycle.Options{})
	require.Equal(t, lifecycle.OperationFailed, e.status(third.OperationID).Status, "the next reissue supersedes it")
}

// TestAbandonRaces: an abandonment beside every other write of the operation leaves the
// node in one legal state, and a rehydration ends what is left.
func TestAbandonRaces(t *testing.T) {
	t.Parallel()
	writers := map[string]func(e *env, c activities.Claim) error{
		"advance": func(e *env, c activities.Claim) error {
			return e.Operations.Advance(e.t.Context(), c.Fence, "", activities.Advance{Step: 1, Phase: "drain"})
		},
		"finish": func(e *env, c activities.Claim) error {
			return e.Finish(e.t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained})
		},
		"claim": func(e *env, c activities.Claim) error {
			_, err := e.Claim(e.t.Context(), request(c.Fence.NodeID, lifecycle.ActionDrain))
			return err
		},
		"accept": func(e *env, c activities.Claim) error {
			_, err := e.AcceptAbandoned(e.t.Context(), c.Fence.NodeID, "x", rehydrator)
			if schema.KindOf(err) == schema.KindInvalidRequest {
				return nil // before the abandonment
			}
			return err
		},
		"enqueue": func(e *env, c activities.Claim) error {
			err := e.enqueueLate(c.Fence)
			if errors.Is(err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: "operation_abandoned"}) {
				return nil
			}
			return err
		},
	}
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			ctx := t.Context()
			for range 10 {
				n := e.inState(lifecycle.NodeActive)
				r, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
				for i, err := range race(12, func(i int) error {
					if i == 0 {
						return write(e, c)
					}
					return e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunTerminated)
				}) {
					require.NoError(t, err, "caller %d", i)
				}
				rows := e.audit(n.ID)
				require.LessOrEqual(t, count(rows, "nodes.drain parked run_terminated"), 2, "once, and once more after an advance")
				for _, op := range e.operations(n.ID, true) {
					require.NoError(t, e.Abandon(ctx, op.OperationID, op.RunID, lifecycle.RunLost))
				}
				_, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
				require.NoError(t, err)
				require.Empty(t, e.operations(n.ID, true))
				require.NotEmpty(t, lifecycle.ActionsIn(e.node(n.ID).State))
				require.Equal(t, name == "finish", e.node(n.ID).State == lifecycle.NodeDrained)
				require.Zero(t, e.number("SELECT count(*) FROM node_tasks WHERE node_id = $1 AND finished_at IS NULL", n.ID))
			}
		})
	}
}

// enqueueLate enqueues a task of an operation that may be abandoned.
func (e *env) enqueueLate(f activities.Fence) error {
	s := spec(f, "late", task.WorkloadDrain)
	row, err := e.Prepare(e.t.Context(), s, taskOwner(s.Step))
	if err != nil {
		return err
	}
	return e.Enqueue(e.t.Context(), s, taskOwner(s.Step), row, []byte(`{}`))
}

// TestAcceptRace: concurrent rehydrations end the operation once.
func TestAcceptRace(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	e.abandoned(n.ID, lifecycle.ActionDrain)
	ended := make([]int, 20)
	for _, err := range race(len(ended), func(i int) error {
		got, err := e.AcceptAbandoned(t.Context(), n.ID, "x", rehydrator)
		ended[i] = len(got.Ended)
		return err
	}) {
		require.NoError(t, err)
	}
	slices.Sort(ended)
	require.Equal(t, 1, ended[19])
	require.Zero(t, ended[18])
	require.Equal(t, 1, count(e.audit(n.ID), "nodes.rehydrate succeeded x"))
	require.Equal(t, lifecycle.NodeActive, e.node(n.ID).State)
}

// TestOldestAbandonedIsFirst: an abandoned operation is listed by the time it was
// abandoned, among the parked ones.
func TestOldestAbandonedIsFirst(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	var want []string
	for i := range 3 {
		n := e.inState(lifecycle.NodeActive)
		r, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
		if i == 1 {
			stuck := &lifecycle.Stuck{Phase: "drain", Reason: "drain_blocked", Since: time.Now().UTC()}
			require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "drain", Stuck: stuck}))
		} else {
			require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunFailed))
		}
		want = append(want, r.OperationID)
	}
	var got []string
	for _, s := range e.stuckList() {
		got = append(got, s.OperationID)
	}
	require.Equal(t, want, got)
	ops, _, err := e.ListOperations(ctx, adminapi.OperationQuery{Page: all, Statuses: []lifecycle.OperationState{lifecycle.OperationAbandoned}, Reasons: []string{"run_failed"}})
	require.NoError(t, err)
	require.Len(t, ops, 2)
}

// TestRehydrateVoidsTokens: the end of an abandoned enrollment or reissue voids the unused
// tokens that it issued, as its cancel does.
func TestRehydrateVoidsTokens(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	e.abandoned(n.ID, lifecycle.ActionEnroll)
	enroll, _ := e.token(n.ID)
	caller, _, _ := e.enroll()
	e.abandoned(caller.NodeID, lifecycle.ActionReissueEnrollment)
	reissue, _ := e.reissued(caller.NodeID)
	for id, tokenID := range map[string]string{n.ID: enroll, caller.NodeID: reissue} {
		require.Equal(t, "issued", e.tokenStateOf(tokenID))
		_, err := e.AcceptAbandoned(ctx, id, "x", rehydrator)
		require.NoError(t, err)
		require.Equal(t, "voided", e.tokenStateOf(tokenID))
	}
}

// TestRehydrateNamesTheCordon: a rehydration says that the node is still cordoned, and how
// to remove the cordon.
func TestRehydrateNamesTheCordon(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	e.abandoned(n.ID, lifecycle.ActionDrain)
	e.exec("UPDATE nodes SET cordoned = true WHERE node_id = $1", n.ID)
	for range 2 {
		got, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
		require.NoError(t, err)
		require.True(t, got.Cordoned)
		require.Equal(t, "gpuaas node uncordon "+n.Host, got.Next)
	}
}
