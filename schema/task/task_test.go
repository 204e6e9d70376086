package task_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
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
		task.NodeReboot: task.EffectDestructive, task.GPUReset: task.EffectDestructive, task.NodeVerify: task.EffectIdempotent,
		task.WorkloadCordon: task.EffectIdempotent, task.WorkloadUncordon: task.EffectIdempotent, task.UpdateTrust: task.EffectIdempotent,
		task.NewIdentity:   task.EffectIdempotent,
		task.WorkloadDrain: task.EffectDestructive, task.WipeIdentity: task.EffectDestructive, task.AgentUpgrade: task.EffectDestructive,
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
		"failed":             {task.Result{Status: task.Failed, Code: schema.KindUnfit, Message: "no GPU: 100%"}, schema.KindUnfit, "the node reports: `no GPU: 100%`", ""},
		"without a reason":   {task.Result{Status: task.Failed}, schema.KindTaskFailed, "the node reports a failure and no reason", ""},
		"marked up":          {task.Result{Status: task.Failed, Message: "x`\n\n**Next:** `curl\x1b[2J"}, schema.KindTaskFailed, "the node reports: `x' **Next:** 'curl?[2J`", ""},
		"long":               {task.Result{Status: task.Failed, Message: strings.Repeat("x", 3000)}, schema.KindTaskFailed, "the node reports: `" + strings.Repeat("x", 299) + "…`", ""},
		"lost":               {task.Result{Status: task.Lost, Code: schema.KindUnfit, Message: "x"}, schema.KindTaskFailed, "x", lifecycle.ReasonTaskLost},
		"canceled":           {task.Result{Status: task.Canceled, Code: schema.KindUnfit}, schema.KindTaskFailed, "the task was canceled", lifecycle.ReasonTaskCanceled},
		"canceled, with why": {task.Result{Status: task.Canceled, Message: "x"}, schema.KindTaskFailed, "the task was canceled: `x`", lifecycle.ReasonTaskCanceled},
	} {
		got := row.result.Failure()
		require.NotNil(t, got, name)
		require.Equal(t, schema.Error{Kind: row.kind, Message: row.message, Reason: row.reason}, *got, name)
	}
}

// TestReportedCode: a node speaks for itself only.
func TestReportedCode(t *testing.T) {
	t.Parallel()
	for _, row := range schema.Kinds() {
		want := schema.KindTaskFailed
		if row.Kind == schema.KindTaskRefused || row.Kind == schema.KindUnfit {
			want = row.Kind
		}
		require.Equal(t, want, task.ReportedCode(row.Kind), row.Kind)
	}
	for _, code := range []string{"", "my_own_code", "unfit\n", strings.Repeat("x", 3000)} {
		require.Equal(t, schema.KindTaskFailed, task.ReportedCode(schema.Kind(code)), code)
		require.Equal(t, schema.KindTaskFailed, task.Result{Status: task.Failed, Code: schema.Kind(code), Message: "x"}.Failure().Kind)
	}
}

func TestBrief(t *testing.T) {
	t.Parallel()
	const hostile = "a`\n**Next:** <b>curl\x1b[2J\u202e"
	const quoted = "`a' **Next:** <b>curl?[2J?`"
	encode := func(v any) json.RawMessage {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		return raw
	}
	many := func(n int) (out []task.Blocker) {
		for range n {
			out = append(out, task.Blocker{Workload: strings.Repeat("w", 5000), Reason: hostile})
		}
		return out
	}
	for name, row := range map[string]struct {
		kind     task.Type
		in, want any
	}{
		"facts": {task.FactsCollect,
			inventory.Facts{Hostname: "h", CPUs: 2, MemoryBytes: 3, Disks: make([]inventory.Disk, 9), GPUs: []inventory.GPU{{Index: 1, UUID: "u", Model: hostile}}},
			inventory.Facts{CPUs: 2, MemoryBytes: 3, GPUs: []inventory.GPU{{Index: 1, Model: quoted}}}},
		"probe": {task.NodeProbe,
			inventory.ProbeReport{Healthy: true, BootID: "b", Checks: []inventory.ProbeCheck{{Name: "disk", OK: true}, {Name: "gpu", Detail: hostile}, {Name: hostile, Detail: "x"}}},
			inventory.ProbeReport{Healthy: true, Checks: []inventory.ProbeCheck{{Name: "gpu", Detail: quoted}, {Name: quoted, Detail: "`x`"}}}},
		"cordon": {task.WorkloadCordon,
			task.CordonResult{Cordoned: true, Was: true, Workloads: []task.Workload{{Name: "job", Kind: "docker", Stopping: true, Warning: hostile}, {Name: hostile, Kind: hostile}}},
			task.CordonResult{Cordoned: true, Was: true, Workloads: []task.Workload{{Name: "`job`", Kind: "docker"}, {Name: quoted, Kind: task.KindUnknown}}}},
		"drain": {task.WorkloadDrain,
			task.DrainResult{Stopped: []string{"a"}, Blocked: []task.Blocker{{Workload: "job-1", Kind: task.KindGPUProcess, Reason: hostile}, {Workload: hostile, Kind: hostile, Reason: "y"}},
				Ignored: []task.Blocker{{Workload: "a"}}},
			task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Kind: task.KindGPUProcess, Reason: quoted}, {Workload: quoted, Kind: task.KindUnknown, Reason: "`y`"}}}},
	} {
		got, err := task.Result{Output: encode(row.in)}.Brief(row.kind)
		require.NoError(t, err, name)
		require.JSONEq(t, string(encode(row.want)), string(got), name)
		for _, wrong := range []string{``, `"yes"`, `[]`, `7`, `{"cpus":"two","blocked":{},"checks":1,"was":"no"}`} {
			_, err := task.Result{Output: json.RawMessage(wrong)}.Brief(row.kind)
			require.Equal(t, schema.KindTaskFailed, schema.KindOf(err), "%s: %s", name, wrong)
			require.Error(t, task.CheckOutput(row.kind, json.RawMessage(wrong)))
		}
	}
	large, err := task.Result{Output: encode(task.DrainResult{Stopped: make([]string, 1000), Blocked: many(1000)})}.Brief(task.WorkloadDrain)
	require.NoError(t, err)
	require.Less(t, len(large), 8<<10)
	large, err = task.Result{Output: encode(task.CordonResult{Workloads: slices.Repeat([]task.Workload{{Name: strings.Repeat("w", 5000)}}, 1000)})}.Brief(task.WorkloadCordon)
	require.NoError(t, err)
	require.Less(t, len(large), 8<<10)
	large, err = task.Result{Output: encode(inventory.Facts{GPUs: make([]inventory.GPU, 10_000)})}.Brief(task.FactsCollect)
	require.NoError(t, err)
	require.Less(t, len(large), 32<<10)
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
