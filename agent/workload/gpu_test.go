package workload

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// processesOf runs the list of GPU processes with a command that prints a recorded output.
func processesOf(t *testing.T, script string) []task.Workload {
	t.Helper()
	return NewGPUs(agenttest.Stub(t, script), time.Now, slog.New(slog.DiscardHandler)).Processes(t.Context())
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", "compute-apps", name))
	require.NoError(t, err)
	return "cat " + path
}

// TestGPUProcesses: a process is listed once, however many GPUs it uses. A name may have
// commas, and the memory may be absent.
func TestGPUProcesses(t *testing.T) {
	t.Parallel()
	busy := processesOf(t, recorded(t, "h100-training.csv"))
	require.Equal(t, []task.Workload{
		{Name: "pid 41873 /usr/bin/python3", Kind: task.KindGPUProcess},
		{Name: "pid 52011 /opt/app/serve, --model=a,b", Kind: task.KindGPUProcess},
		{Name: "pid 52900 [Not Found]", Kind: task.KindGPUProcess},
	}, busy)
	require.NoError(t, wire.CheckWorkloads(Reportable(busy)))
	require.Empty(t, processesOf(t, recorded(t, "idle.csv")))
	gone := NewGPUs("/no/such/nvidia-smi", time.Now, slog.New(slog.DiscardHandler)).Processes(t.Context())
	if _, err := os.Stat("/proc/driver/nvidia/gpus"); err != nil {
		require.Empty(t, gone, "a machine without GPUs")
	}
}

// TestGPUProcessesUnknown: an output that is not the list does not mean that nothing runs.
func TestGPUProcessesUnknown(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"failure":       "echo 'Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error'; exit 255",
		"no driver":     "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
		"two columns":   "echo '41873, python3'",
		"header":        "echo 'pid, process_name, used_gpu_memory [MiB]'",
		"pid 0":         "echo '0, python3, 10'",
		"negative":      "echo '-1, python3, 10'",
		"unit":          "echo '41873, python3, 10 MiB'",
		"empty message": "echo 'No running processes found'",
		"too long":      "head -c 400000 /dev/zero | tr '\\0' x",
		"too many":      "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo \"$i, p, 1\"; done",
	} {
		list := processesOf(t, script)
		require.Len(t, list, 1, name)
		require.Equal(t, task.KindUnknown, list[0].Kind, name)
		require.True(t, strings.HasPrefix(list[0].Name, "GPU processes: "), list[0].Name)
		require.NoError(t, wire.CheckWorkloads(Reportable(list)), name)
	}
}

// TestHostileProcessNames: the name of a process is that of its owner's choice.
func TestHostileProcessNames(t *testing.T) {
	t.Parallel()
	list := processesOf(t, `printf '7, \033[2J%s\377, 1\n' "$(head -c 4000 /dev/zero | tr '\0' y)"`)
	require.Len(t, list, 1)
	require.Equal(t, task.KindGPUProcess, list[0].Kind)
	require.NoError(t, wire.CheckWorkloads(list))
}

func drained(t *testing.T, d Drain, p task.DrainParams) task.DrainResult {
	t.Helper()
	d.Now = time.Now
	out, err := d.Run(t.Context(), drainTask(&bytes.Buffer{}, p))
	require.NoError(t, err)
	r, ok := out.(task.DrainResult)
	require.True(t, ok)
	return r
}

// TestDrainIsNotBlind: a drain that would stop nothing, because the agent does not know what
// runs, is blocked at once; one whose GPU processes do not end, at its deadline.
func TestDrainIsNotBlind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r := drained(t, Drain{Workloads: unset{}}, task.DrainParams{Deadline: begin.Add(time.Hour)})
		require.Len(t, r.Blocked, 1)
		require.Equal(t, task.KindUnknown, r.Blocked[0].Kind)
		require.Contains(t, r.Blocked[0].Workload, "no workload driver is configured")
		require.Less(t, time.Since(begin), time.Minute, "nothing would change before the deadline")

		training := []task.Workload{{Name: "pid 7 python3", Kind: task.KindGPUProcess}}
		gpus := func(context.Context) []task.Workload { return training }
		r = drained(t, Drain{Workloads: Unmanaged{}, GPUs: gpus}, task.DrainParams{Deadline: time.Now().Add(time.Minute)})
		require.Len(t, r.Blocked, 1)
		require.Equal(t, "pid 7 python3", r.Blocked[0].Workload)
		require.Equal(t, task.KindGPUProcess, r.Blocked[0].Kind)

		until := time.Now().Add(30 * time.Second)
		gpus = func(context.Context) []task.Workload {
			if time.Now().Before(until) {
				return training
			}
			return nil
		}
		r = drained(t, Drain{Workloads: Unmanaged{}, GPUs: gpus}, task.DrainParams{Deadline: time.Now().Add(time.Hour)})
		require.Empty(t, r.Blocked, "the process ended")
		require.Less(t, time.Now(), until.Add(time.Minute), "the drain does not wait longer")
	})
}

// TestForcedDrain: a forced drain kills what the driver manages, and names what it ignores.
func TestForcedDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gpus := func(context.Context) []task.Workload {
			return []task.Workload{{Name: "pid 7 python3", Kind: task.KindGPUProcess}}
		}
		r := drained(t, Drain{Workloads: unset{}, GPUs: gpus}, task.DrainParams{Deadline: time.Now().Add(10 * time.Second), Force: true})
		require.Empty(t, r.Blocked)
		require.Len(t, r.Ignored, 2)

		w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "a", Kind: inventory.DriverDocker}}, OnStop: func(string) error { return nil }}
		r = drained(t, Drain{Workloads: w, GPUs: gpus}, task.DrainParams{Deadline: time.Now().Add(10 * time.Second), Force: true})
		require.Equal(t, []string{"a"}, w.Killed)
		require.Len(t, r.Blocked, 1, "a workload that survives the kill")
		require.Equal(t, "a", r.Blocked[0].Workload)
		require.Empty(t, r.Ignored)
	})
}

// TestGPUProcessesOfWorkloads: while workloads of the driver run, the GPU processes are not
// asked for, because most belong to them.
func TestGPUProcessesOfWorkloads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "a", Kind: inventory.DriverDocker}}, OnStop: func(string) error { return nil }}
		r := drained(t, Drain{Workloads: w, GPUs: func(context.Context) []task.Workload {
			t.Error("asked for GPU processes")
			return nil
		}}, task.DrainParams{Deadline: time.Now().Add(time.Second)})
		require.Len(t, r.Blocked, 1)
		require.Equal(t, inventory.DriverDocker, r.Blocked[0].Kind)
	})
}
