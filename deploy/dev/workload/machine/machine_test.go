package machine

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent"
)

// reexecVar makes the test binary be an agent whose machine reboots once: its value is the agent's
// state folder.
const reexecVar = "GPUAAS_TEST_REBOOT"

func TestMain(m *testing.M) {
	if folder := os.Getenv(reexecVar); folder != "" {
		os.Exit(rebootOnce(folder))
	}
	os.Exit(m.Run())
}

// rebootOnce prints its process ID and boot ID as JSON, and restarts the simulated machine if that is
// the first boot.
func rebootOnce(folder string) int {
	var d agent.Deps
	if err := Extras().Simulate(context.Background(), agent.Config{StateDir: folder}, &d); err != nil {
		return 1
	}
	boot := d.BootID()
	if json.NewEncoder(os.Stdout).Encode(map[string]any{"pid": os.Getpid(), "boot": boot, "faults": len(d.Health.Report().Faults())}) != nil {
		return 1
	}
	if boot == "gpu-17-boot-1" {
		_ = d.Reboot(context.Background()) // it returns only if it failed
		return 1
	}
	return 0
}

// TestRebootOfADevAgent: the process stays, is off for a while, and continues with another boot ID and
// without the fault.
func TestRebootOfADevAgent(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "gpu-17")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "faults.json"), []byte(`{"reboot_seconds": 0.2, "faults": [
		{"condition": {"checker": "gpu_xid", "reason": "Xid", "code": 79, "repair": "reboot"}}]}`), 0o600))
	program, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), reexecVar+"="+filepath.Join(folder, "state"))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := json.NewDecoder(out)
	type line struct {
		PID    int    `json:"pid"`
		Boot   string `json:"boot"`
		Faults int    `json:"faults"`
	}
	var first, second line
	require.NoError(t, lines.Decode(&first))
	require.NoError(t, lines.Decode(&second))
	require.NoError(t, cmd.Wait())
	require.Equal(t, line{cmd.Process.Pid, "gpu-17-boot-1", 1}, first)
	require.Equal(t, line{cmd.Process.Pid, "gpu-17-boot-2", 0}, second)
}

// TestUnreadableFaults: the agent says so at its start.
func TestUnreadableFaults(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "faults.json"), []byte(`{"faults": 1}`), 0o600))
	var d agent.Deps
	require.ErrorContains(t, simulateMachine(t.Context(), agent.Config{StateDir: filepath.Join(folder, "state")}, &d), "reading the faults file")
}
