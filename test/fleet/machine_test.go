package fleet

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestRepairsOfASimulatedNode: a node verifies with its faults, and a reboot ends its agent for a while,
// gives it another boot ID and ends the fault.
func TestRepairsOfASimulatedNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	faults := filepath.Join(dir, "faults.json")
	require.NoError(t, os.WriteFile(faults, []byte(`{"reboot_seconds": 7, "faults": [{"hosts": ["fleet-00*"],
		"condition": {"checker": "gpu_xid", "component": "GPU-1", "reason": "Xid", "code": 79, "repair": "reboot"}}]}`), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "fleet-0001"), 0o700))
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newTestMember("", nil)
		m.machine = newMachine(faults, filepath.Join(dir, "fleet-0001", "state"))
		verified := func() task.VerifyResult {
			out, err := testExecutor(m, task.NodeVerify)(t.Context(), newTask(task.NodeVerify))
			require.NoError(t, err)
			r, ok := out.(task.VerifyResult)
			require.True(t, ok)
			return r
		}
		require.Equal(t, []recovery.Test{{Name: "gpu_xid", Detail: "simulated: Xid"}}, verified().Tests)
		require.Equal(t, health.Unhealthy, m.machine.Report().Conditions[0].Status)
		before := m.machine.BootID()
		reset := newTask(task.GPUReset)
		reset.Params = task.ResetParams{}.Encode()
		_, err := testExecutor(m, task.GPUReset)(t.Context(), reset)
		require.NoError(t, err)
		require.False(t, verified().OK, "a reset does not cure it")

		ctx, end := context.WithCancelCause(t.Context())
		m.end = end
		require.NoError(t, m.reboot(t.Context()))
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), errRebooted)
		require.Equal(t, 7*time.Second, m.downtime(context.Cause(ctx)))
		require.NotEqual(t, before, m.machine.BootID())
		require.True(t, verified().OK)
	})
}

// TestRebootIsTheAgentsOwn: the simulated node checks the boot ID as a real one does.
func TestRebootIsTheAgentsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newTestMember("", nil)
		x := m.wrapExecutor(task.NodeReboot, runner.Executor{Run: func(context.Context, runner.Task) (any, error) { return "own", nil }})
		out, err := x.Run(t.Context(), newTask(task.NodeReboot))
		require.NoError(t, err)
		require.Equal(t, "own", out)
	})
}
