package workflows

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// lockedBy is the failure of a node whose identity is locked.
func lockedBy(reason string) *schema.Error {
	return lifecycle.IdentityLocked("gpu-17", trust.IdentityLock{Reason: reason, By: "alice", Note: "key leaked",
		Since: time.Date(2026, 11, 24, 19, 20, 14, 0, time.UTC)})
}

// parkOf returns how an operation parks whose call fails.
func parkOf(t *testing.T, a lifecycle.Action, call string, e *schema.Error) lifecycle.Stuck {
	t.Helper()
	w := newWorld(lifecycle.NodeActive)
	w.fail[call] = activities.Failure(e, true)
	if strings.HasPrefix(call, "enqueue ") { // the activity makes it a failure
		w.fail[call] = e
	}
	for _, replaced := range []string{"#2", "#3"} {
		w.fail[call+replaced] = w.fail[call]
	}
	b := setup(t, a, w)
	b.decideAt(time.Hour, lifecycle.DecisionCancel)
	b.decideAt(2*time.Hour, lifecycle.DecisionSkip)
	b.run()
	require.NotEmpty(t, w.parks)
	return w.parks[0]
}

// The cause of a park names what the agent reported: an agent that responds is not down.
func TestCauseOfAReportedFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failure *schema.Error
		cause   string
	}{
		"failed":    {schema.NewError(schema.KindTaskFailed, "the node reports: 'exit status 1'"), "the agent ran the task, and it failed"},
		"refused":   {schema.NewError(schema.KindTaskRefused, "the node reports: 'bad_signature'"), "the agent rejected the task"},
		"replayed":  {schema.NewError(schema.KindTaskRefused, "the node reports: 'replayed_seq: 3'").WithReason(lifecycle.ReasonSeqReplayed), "sequence"},
		"rollback":  {schema.NewError(schema.KindTaskFailed, "the node reports: 'upgrade_rolled_back: x'").WithReason(lifecycle.ReasonUpgradeRolledBack), "the agent before the release runs again"},
		"rejection": {schema.NewError(schema.KindTaskFailed, "the node reports: 'release_rejected: x'").WithReason(lifecycle.ReasonReleaseRejected), "nothing was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := parkOf(t, lifecycle.ActionUncordon, "task workload.uncordon", c.failure)
			require.Contains(t, s.Cause, c.cause)
			require.NotContains(t, s.Cause, "down")
			require.Equal(t, lifecycle.AttentionOperator, s.WaitingOn)
			require.Nil(t, s.Retrying)
			if name == "failed" || name == "refused" {
				require.Contains(t, s.Cause, "gpuaas task show "+lifecycle.TaskID("op-1", "workload.uncordon"))
			}
		})
	}
}

// The cause of a park is the lock of the node's identity, and the next step is possible while
// the operation is open. A server's lock needs a reissue, which waits for a drain.
func TestParkOfALockedNode(t *testing.T) {
	t.Parallel()
	const unlock, reissue = "gpuaas node unlock gpu-17 --reason TEXT", "gpuaas node reissue-enrollment gpu-17"
	for name, c := range map[string]struct {
		action lifecycle.Action
		call   string
		lock   string
		next   string
	}{
		"operator": {lifecycle.ActionDrain, "enqueue workload.cordon", trust.LockedByOperator, unlock},
		"server":   {lifecycle.ActionUncordon, "enqueue workload.uncordon", trust.LockedBySerial, reissue},
		"conflict": {lifecycle.ActionDrain, "enqueue workload.drain", trust.LockedBySerial, "gpuaas op cancel gpu-17 --operation op-1 --phase drain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := parkOf(t, c.action, c.call, lockedBy(c.lock))
			require.Equal(t, schema.ReasonNodeLocked, s.Reason)
			require.Contains(t, s.Message, "its identity is locked")
			require.Contains(t, s.Message, "since 2026-11-24T19:20:14Z")
			require.Contains(t, s.Cause, "its identity is locked")
			require.NotContains(t, s.Cause, "down")
			require.Contains(t, s.Next, c.next)
			require.Equal(t, lifecycle.AttentionOperator, s.WaitingOn)
			require.NotNil(t, s.Retrying, "the operation continues when the lock ends")
			if name == "conflict" {
				require.Contains(t, s.Cause, "then run: "+reissue)
			}
		})
	}

	t.Run("lost task", func(t *testing.T) {
		t.Parallel()
		report := task.NoReport(task.Lost, 1)
		lost := report.Failure().WithNext(lockedBy(trust.LockedByOperator).Next)
		s := parkOf(t, lifecycle.ActionDrain, "task workload.drain", lost)
		require.Equal(t, lifecycle.ReasonTaskLost, s.Reason)
		require.Contains(t, s.Cause, "its identity is locked")
		require.Equal(t, unlock, s.Next)
		require.Equal(t, lifecycle.DecisionResume, s.Options[0].Decision)
	})
	t.Run("lost task of an agent that was purged", func(t *testing.T) {
		t.Parallel()
		report := task.NoReport(task.Lost, 1)
		s := parkOf(t, lifecycle.ActionDrain, "task workload.drain", report.Failure())
		require.Equal(t, lifecycle.DecisionResume, s.Options[0].Decision)
		require.Contains(t, s.Cause, "cancel the operation, skip its undo when that parks, then run: "+reissue)
	})
}

// A drain whose node is locked while its workloads end waits for the end of the lock, not for the
// workloads.
func TestDrainOfANodeThatIsLockedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.silent[task.WorkloadDrain], w.fail["heartbeat?"] = true, lockedBy(trust.LockedByOperator)
	b := setup(t, lifecycle.ActionDrain, w)
	b.at(6*time.Hour, func() {
		stuck := b.status().Operation.Stuck
		require.Equal(t, schema.ReasonNodeLocked, stuck.Reason)
		require.Equal(t, lifecycle.AttentionOperator, stuck.WaitingOn)
		require.Equal(t, lockedBy(trust.LockedByOperator).Next, stuck.Next)
		require.NotNil(t, stuck.Retrying)
	})
	b.decideAt(7*time.Hour, lifecycle.DecisionCancel)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Len(t, w.parks, 1, "the reason stays while the phase is retried")
}

// An undo does not wait for a node whose identity is locked, whenever it is locked, and the
// record says what the undo did not do.
func TestUndoOfALockedNode(t *testing.T) {
	t.Parallel()
	locked := lockedBy(trust.LockedBySerial)
	for name, change := range map[string]func(b *bed, w *world){
		"before": func(_ *bed, w *world) { failUncordon(w, locked) },
		"while it waits": func(_ *bed, w *world) {
			w.fail["task workload.uncordon"] = activities.Failure(locked, true) // as the read of a task that is not done in time
		},
		"while parked": func(b *bed, w *world) {
			failUncordon(w, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed"))
			b.at(2*time.Hour, func() {
				require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
				failUncordon(w, locked)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.open[task.WorkloadDrain] = true
			b := setup(t, lifecycle.ActionDrain, w)
			change(b, w)
			b.decideAt(time.Minute, lifecycle.DecisionCancel)
			st := b.run()
			require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
			undo := st.Operation.Phases[len(st.Operation.Phases)-1]
			require.Equal(t, lifecycle.PhaseUndoCordon, undo.Name)
			require.Equal(t, lifecycle.PhaseSkipped, undo.State)
			require.Contains(t, undo.Reason, "its identity is locked")
			require.Equal(t, "rolled back; the node was not uncordoned, because its identity is locked; after the lock: gpuaas node uncordon gpu-17",
				st.Operation.Outcome)
			require.Equal(t, lifecycle.NodeActive, w.finished.Node)
			require.LessOrEqual(t, len(w.parks), 1)
		})
	}
}

// TestTimedOut: a phase that exceeded its budget names the party that did not respond. An undo waits for
// the party of its step.
func TestTimedOut(t *testing.T) {
	t.Parallel()
	reasons := map[string]string{}
	for _, p := range lifecycle.Operations() {
		plan, _ := lifecycle.PlanOf(p.Action, lifecycle.Options{})
		for _, spec := range plan.Phases {
			reason, _ := timedOut(spec)
			want := map[lifecycle.Attention]string{lifecycle.AttentionAgent: string(schema.KindAgentSilent), lifecycle.AttentionProvider: lifecycle.ReasonProviderSilent,
				lifecycle.AttentionOperator: lifecycle.ReasonTimeout}[spec.WaitingOn]
			require.Equal(t, want, reason, "%s %s", p.Action, spec.Name)
		}
		if plan.Undo != nil {
			reasons[plan.Undo.Name], _ = timedOut(*plan.Undo)
		}
	}
	require.Equal(t, lifecycle.ReasonProviderSilent, reasons[lifecycle.PhaseUndoAdopt])
	require.Equal(t, lifecycle.ReasonProviderSilent, reasons[lifecycle.PhaseUndoTeardown])
	require.Equal(t, string(schema.KindAgentSilent), reasons[lifecycle.PhaseUndoCordon])
}
