package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func decode[T any](t *testing.T, data []byte) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}

func writeSpec(t *testing.T, c Config, name string, restart bool, command ...string) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"command": command, "restart": restart})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(workloadDir(c), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(workloadDir(c), name+".json"), data, 0o600))
}

func TestNodeLifecycle(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	writeSpec(t, c, "job", false, "sleep", "1000")
	a := start(t, c, Deps{})

	f.Until("the workload in a heartbeat", func() bool {
		n := len(f.Heartbeats)
		return n > 0 && len(f.Heartbeats[n-1].Workloads) == 1
	})
	do := func(p task.Payload) task.Result {
		f.Offers <- f.OfferOf(p, 1)
		r := f.Result(p.TaskID)
		require.Equal(t, task.Succeeded, r.Status, "%s %s", r.Code, r.Message)
		return r
	}
	facts := decode[inventory.Facts](t, do(f.Payload(task.FactsCollect, 1, nil)).Output)
	require.Positive(t, facts.CPUs)
	require.Positive(t, facts.MemoryBytes)
	require.NotEmpty(t, facts.Kernel)
	probe := decode[inventory.ProbeReport](t, do(f.Payload(task.NodeProbe, 2, nil)).Output)
	require.True(t, probe.Healthy, "%v", probe.Failed())
	cordoned := decode[task.CordonResult](t, do(f.Payload(task.WorkloadCordon, 3, nil)).Output)
	require.False(t, cordoned.Was)
	require.True(t, cordoned.Cordoned)
	require.Len(t, cordoned.Workloads, 1)
	drained := decode[task.DrainResult](t, do(f.Payload(task.WorkloadDrain, 4,
		task.DrainParams{Deadline: time.Now().Add(time.Minute)})).Output)
	require.Equal(t, task.DrainResult{Stopped: []string{"job"}}, drained)
	f.Until("the cordon and the empty list in a heartbeat", func() bool {
		last := f.Heartbeats[len(f.Heartbeats)-1]
		return last.Cordoned && len(last.Workloads) == 0 && last.Phase == "ready"
	})
	undone := decode[task.CordonResult](t, do(f.Payload(task.WorkloadUncordon, 5, nil)).Output)
	require.True(t, undone.Was)

	a.halt()
	require.NoError(t, a.err)
	require.Contains(t, a.log.String(), `"msg":"enrollment succeeded"`)
	require.NotContains(t, a.log.String(), c.EnrollmentToken.Reveal())
}
