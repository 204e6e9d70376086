package task_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

func TestTerminalStatuses(t *testing.T) {
	t.Parallel()
	for status, want := range map[task.Status]bool{
		task.Pending: false, task.Dispatched: false, task.Running: false, task.Lost: false,
		task.Succeeded: true, task.Failed: true, task.Canceled: true,
	} {
		require.Equal(t, want, status.Terminal(), status)
	}
}

// The effects decide which tasks the reclaimer may dispatch again.
func TestTypes(t *testing.T) {
	t.Parallel()
	effects := map[task.Type]task.Effect{}
	for _, row := range task.Types() {
		effects[row.Type] = row.Effect
		require.Positive(t, row.MaxRuntime, row.Type)
		found, ok := row.Type.Info()
		require.True(t, ok, row.Type)
		require.Equal(t, row, found)
	}
	require.Equal(t, map[task.Type]task.Effect{
		task.FactsCollect: task.EffectRead, task.NodeProbe: task.EffectRead,
		task.WorkloadCordon: task.EffectIdempotent, task.WorkloadUncordon: task.EffectIdempotent, task.UpdateTrust: task.EffectIdempotent,
		task.WorkloadDrain: task.EffectDestructive, task.WipeIdentity: task.EffectDestructive,
	}, effects)
	_, ok := task.Type("node.explode").Info()
	require.False(t, ok)
}

func TestNoReport(t *testing.T) {
	t.Parallel()
	voided, lost := task.NoReport(task.Canceled, 3), task.NoReport(task.Lost, 4)
	require.Equal(t, task.Result{LeaseEpoch: 3, Status: task.Canceled, Code: schema.KindTaskFailed, Message: "the task was voided"}, voided)
	require.Equal(t, int64(4), lost.LeaseEpoch)
	require.Equal(t, task.Lost, lost.Status)
	require.Contains(t, lost.Message, "may or may not have run")
}

func TestFailure(t *testing.T) {
	t.Parallel()
	require.Nil(t, task.Result{Status: task.Succeeded, Code: schema.KindUnfit}.Failure())
	for name, row := range map[string]struct {
		result  task.Result
		kind    schema.Kind
		message string
		reason  string
	}{
		"failed":             {task.Result{Status: task.Failed, Code: schema.KindUnfit, Message: "no GPU: 100%"}, schema.KindUnfit, "no GPU: 100%", ""},
		"without a code":     {task.Result{Status: task.Failed, Message: "x"}, schema.KindTaskFailed, "x", ""},
		"a fence by a node":  {task.Result{Status: task.Failed, Code: schema.KindFenced, Message: "x"}, schema.KindTaskFailed, "x", ""},
		"lost":               {task.Result{Status: task.Lost, Code: schema.KindUnfit, Message: "x"}, schema.KindTaskFailed, "x", lifecycle.ReasonTaskLost},
		"canceled":           {task.Result{Status: task.Canceled, Code: schema.KindUnfit}, schema.KindTaskFailed, "the task was canceled", lifecycle.ReasonTaskCanceled},
		"canceled, with why": {task.Result{Status: task.Canceled, Message: "x"}, schema.KindTaskFailed, "x", lifecycle.ReasonTaskCanceled},
	} {
		got := row.result.Failure()
		require.NotNil(t, got, name)
		require.Equal(t, schema.Error{Kind: row.kind, Message: row.message, Reason: row.reason}, *got, name)
	}
}

func TestDecodeAndEncode(t *testing.T) {
	t.Parallel()
	want := task.DrainParams{Deadline: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Force: true}
	var got task.DrainParams
	require.NoError(t, task.Result{Output: want.Encode()}.Decode(&got))
	require.Equal(t, want, got)
	for _, bad := range []string{``, `{`, `[]`, `{"deadline":1}`} {
		require.Equal(t, schema.KindTaskFailed, schema.KindOf(task.Result{Output: json.RawMessage(bad)}.Decode(&got)), bad)
	}
}
