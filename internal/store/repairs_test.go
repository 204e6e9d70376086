package store_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestClaimOfARepair: the node is quarantined from the claim on, and the claim has its machine.
func TestClaimOfARepair(t *testing.T) {
	e := setup(t)
	m := e.created()
	c := e.claim(m.caller.NodeID, lifecycle.ActionRecover)
	require.Equal(t, lifecycle.NodeActive, c.Prior)
	require.Equal(t, lifecycle.NodeQuarantined, e.node(m.caller.NodeID).State)
	require.Equal(t, m.e.node(m.caller.NodeID).Instance.InstanceID, c.Instance.InstanceID)
	require.NotEmpty(t, c.Instance.ExternalID)
	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	require.Equal(t, lifecycle.NodeActive, e.node(m.caller.NodeID).State)
	require.Equal(t, lifecycle.InstanceRunning, e.node(m.caller.NodeID).Instance.State)
}

// TestRepairBoot: the boot is that of the last heartbeat, and a locked node has none.
func TestRepairBoot(t *testing.T) {
	e := setup(t)
	m := e.created()
	none, err := e.Store.Repairs.Boot(t.Context(), m.caller.NodeID)
	require.NoError(t, err)
	require.Negative(t, none.Age)
	e.exec("UPDATE nodes SET boot_id = 'boot-1', uptime_seconds = 60, last_heartbeat_at = now() - interval '1 minute' WHERE node_id = $1", m.caller.NodeID)
	boot, err := e.Store.Repairs.Boot(t.Context(), m.caller.NodeID)
	require.NoError(t, err)
	require.Equal(t, "boot-1", boot.BootID)
	require.Equal(t, time.Minute, boot.Uptime)
	require.GreaterOrEqual(t, boot.Age, time.Minute)
	require.Equal(t, e.number("SELECT incarnation FROM nodes WHERE node_id = $1", m.caller.NodeID), boot.Incarnation)
	_, err = e.Store.Repairs.Boot(t.Context(), schema.NewID())
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
	e.exec("UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'operator' WHERE node_id = $1", m.caller.NodeID)
	_, err = e.Store.Repairs.Boot(t.Context(), m.caller.NodeID)
	require.Equal(t, schema.ReasonNodeLocked, schema.AsError(err).Reason)
}

// TestRepairConditions: a condition counts while its report is fresh.
func TestRepairConditions(t *testing.T) {
	e := setup(t)
	m := e.created()
	m.caller.Incarnation = e.number("SELECT incarnation FROM nodes WHERE node_id = $1", m.caller.NodeID)
	at := time.Now()
	report := health.Report{At: at, Conditions: []health.Condition{{Checker: "gpu_xid", Component: "GPU-1", Status: health.Healthy, Reason: "Ok", Since: at, Samples: 1}}}
	require.NoError(t, e.Heartbeat(t.Context(), nodeapi.Caller{NodeID: m.caller.NodeID, Incarnation: m.caller.Incarnation}, wire.Heartbeat{At: at, Health: &report}))
	now, err := e.Store.Repairs.Conditions(t.Context(), m.caller.NodeID)
	require.NoError(t, err)
	require.Len(t, now, 1)
	require.Equal(t, health.Healthy, now[0].Status)
	e.exec("UPDATE health_reports SET reported_at = now() - interval '1 day'")
	now, err = e.Store.Repairs.Conditions(t.Context(), m.caller.NodeID)
	require.NoError(t, err)
	require.Equal(t, health.Unknown, now[0].Status, "an old report shows nothing")
}

// TestRecordAttempt: the end of a rung replaces its beginning, and a late beginning does not replace
// the end. The boot that the rung ends is that of the first call, also after a reset of the run. Only the
// operation that holds the node writes.
func TestRecordAttempt(t *testing.T) {
	e := setup(t)
	ctx, r := t.Context(), e.Store.Repairs
	c := e.claim(e.inState(lifecycle.NodeActive).ID, lifecycle.ActionRecover)
	began := recovery.Attempt{OperationID: c.Fence.OperationID, NodeID: c.Fence.NodeID, SKU: "cpu-dev", Rung: recovery.RungReboot,
		StartedAt: time.Now().UTC().Truncate(time.Microsecond), BootBefore: "boot-1"}
	ended := began
	ended.EndedAt, ended.Outcome, ended.BootAfter = began.StartedAt.Add(time.Minute), "cured", "boot-2"
	ended.Tests = []recovery.Test{{Name: "gpus", OK: true, Detail: "8"}}
	again := began
	again.BootBefore = "boot-2"
	for _, a := range []recovery.Attempt{began, began, again, ended, ended, again} {
		before, err := r.RecordAttempt(ctx, c.Fence, a)
		require.NoError(t, err)
		require.Equal(t, "boot-1", before)
	}
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM recovery_attempts"))
	require.Equal(t, "cured boot-1 boot-2", e.text("SELECT outcome || ' ' || boot_before || ' ' || boot_after FROM recovery_attempts"))
	foreign := began
	foreign.NodeID = schema.NewID()
	_, err := r.RecordAttempt(ctx, c.Fence, foreign)
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	other := e.claim(c.Fence.NodeID, lifecycle.ActionDrain)
	require.NotEqual(t, c.Fence.OpSeq, other.Fence.OpSeq)
	_, err = r.RecordAttempt(ctx, c.Fence, ended)
	require.Equal(t, schema.KindFenced, schema.KindOf(err))
}

// TestBeginReset: of two calls for one step, one may ask the provider. A reset that had no effect can
// be repeated, and a fenced operation resets nothing.
func TestBeginReset(t *testing.T) {
	e := setup(t)
	ctx, r := t.Context(), e.Store.Repairs
	c := e.claim(e.inState(lifecycle.NodeOffline).ID, lifecycle.ActionRecover)
	for i, want := range []bool{true, false} {
		began, err := r.BeginReset(ctx, c.Fence, "machine.reset")
		require.NoError(t, err)
		require.Equal(t, want, began, i)
	}
	began, err := r.BeginReset(ctx, c.Fence, "machine.reset#2")
	require.NoError(t, err)
	require.True(t, began, "another decision is another step")
	require.NoError(t, r.ForgetReset(ctx, c.Fence, "machine.reset"))
	began, err = r.BeginReset(ctx, c.Fence, "machine.reset")
	require.NoError(t, err)
	require.True(t, began)
	require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeOffline}))
	_, err = r.BeginReset(ctx, c.Fence, "machine.reset#3")
	require.Equal(t, schema.KindFenced, schema.KindOf(err))
}

// TestUndoEndsRepairs: once the undo of a repair began, a late call neither resets nor replaces the machine.
func TestUndoEndsRepairs(t *testing.T) {
	e := setup(t)
	ctx, r := t.Context(), e.Store.Repairs
	m := e.created()
	c := e.claim(m.caller.NodeID, lifecycle.ActionRecover)
	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	e.exec("UPDATE operations SET phase = $2 WHERE operation_id = $1", c.Fence.OperationID, lifecycle.PhaseUndoRecover)
	_, err := r.BeginReset(ctx, c.Fence, "machine.reset")
	require.Equal(t, schema.KindFenced, schema.KindOf(err))
	_, err = r.ReplaceInstance(ctx, c.Fence, c.Instance.InstanceID)
	require.Equal(t, schema.KindFenced, schema.KindOf(err))
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM machine_resets"))
	require.Equal(t, c.Instance.InstanceID, e.node(m.caller.NodeID).Instance.InstanceID)
}

// TestKeepEvidence: the evidence of a repair is stored once, and is kept for a removed node.
func TestKeepEvidence(t *testing.T) {
	e := setup(t)
	ctx, r := t.Context(), e.Store.Repairs
	n := e.inState(lifecycle.NodeActive)
	_, err := e.Store.Repairs.Evidence(ctx, n)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
	e.exec(`UPDATE nodes SET facts = '{"hostname":"h","gpus":[{"uuid":"GPU-1","serial":"165"}]}', boot_id = 'boot-2' WHERE node_id = $1`, n.ID)

	first := e.claim(n.ID, lifecycle.ActionRecover)
	attempt := recovery.Attempt{OperationID: first.Fence.OperationID, NodeID: n.ID, Rung: recovery.RungReboot, StartedAt: time.Now().UTC(), EndedAt: time.Now().UTC(), Outcome: "not_cured"}
	_, err = r.RecordAttempt(ctx, first.Fence, attempt)
	require.NoError(t, err)
	require.NoError(t, e.Finish(ctx, first.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))

	c := e.claim(n.ID, lifecycle.ActionRecover)
	fault := recovery.Fault{Checker: "gpu_xid", Code: 79}
	for _, f := range []recovery.Fault{fault, {Checker: "late"}} {
		require.NoError(t, r.KeepEvidence(ctx, c.Fence, f, []recovery.Attempt{{Rung: recovery.RungReboot, Outcome: "not_cured"}}))
	}
	e.exec("UPDATE nodes SET state = 'removed', facts = NULL WHERE node_id = $1", n.ID)
	b, err := e.Store.Repairs.Evidence(ctx, e.node(n.ID))
	require.NoError(t, err)
	require.Equal(t, c.Fence.OperationID, b.OperationID)
	require.Equal(t, fault, b.Fault)
	require.Equal(t, "165", b.Facts.GPUs[0].Serial)
	require.Len(t, b.Attempts, 1)
	require.Len(t, b.Earlier, 1)
	require.Equal(t, n.ID, b.Audit.Stream)
	require.Positive(t, b.Audit.First)
	require.GreaterOrEqual(t, b.Audit.Last, b.Audit.First)
}

// TestEvidenceIsBounded: a node cannot make its evidence grow without limit.
func TestEvidenceIsBounded(t *testing.T) {
	t.Parallel()
	b := evidence.Bundle{NodeID: "n", Facts: nil}
	for range 100 {
		one := evidence.Task{TaskID: "t", Output: json.RawMessage(`"` + strings.Repeat("x", 4096) + `"`)}
		b.Tasks = append(b.Tasks, one, one, one, one)
	}
	raw, err := json.Marshal(b.Bounded())
	require.NoError(t, err)
	require.LessOrEqual(t, len(raw), evidence.MaxDocument)
	require.NotNil(t, b.Tasks[0].Output, "the bundle itself is not changed")
}

// TestReplaceInstance: the identity of the old machine ends, the node has another instance, and its new
// machine enrolls while the repair holds the node.
func TestReplaceInstance(t *testing.T) {
	e := setup(t)
	ctx, r := t.Context(), e.Store.Repairs
	m := e.created()
	c := e.claim(m.caller.NodeID, lifecycle.ActionRecover)
	_, err := r.ReplaceInstance(ctx, c.Fence, c.Instance.InstanceID)
	require.Equal(t, "resources_open", schema.AsError(err).Reason, "its machine may exist")
	require.Equal(t, lifecycle.InstanceRunning, e.node(m.caller.NodeID).Instance.State)

	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	next, err := r.ReplaceInstance(ctx, c.Fence, c.Instance.InstanceID)
	require.NoError(t, err)
	require.NotEqual(t, c.Instance.InstanceID, next.InstanceID)
	require.Equal(t, lifecycle.InstancePending, next.State)
	require.Equal(t, c.Instance.Options, next.Options)
	again, err := r.ReplaceInstance(ctx, c.Fence, c.Instance.InstanceID)
	require.NoError(t, err)
	require.Equal(t, next.InstanceID, again.InstanceID)
	n := e.node(m.caller.NodeID)
	require.Equal(t, lifecycle.NodeRegistered, n.State)

	completed := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning}
	require.Equal(t, "not_enrolled", schema.AsError(e.Finish(ctx, c.Fence, completed)).Reason)
	tokenID, hash := e.token(m.caller.NodeID)
	m.enroll(tokenID, hash, m.k(2))
	require.NoError(t, e.Finish(ctx, c.Fence, completed))
	require.Equal(t, lifecycle.NodeActive, e.node(m.caller.NodeID).State)
	require.Equal(t, next.InstanceID, e.node(m.caller.NodeID).Instance.InstanceID)
	require.EqualValues(t, 2, e.number("SELECT count(*) FROM instances WHERE node_id = $1", m.caller.NodeID))
}
