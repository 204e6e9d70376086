package workload

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	checks "github.com/gpuaas/gpuaas/agent/health"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/repair"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestRealRepairs: within the limits of the agent's unit, the agent reads what its health checks need,
// tests and resets have the rights that the unit lacks, and the machine restarts.
func TestRealRepairs(t *testing.T) {
	t.Parallel()
	onMachine(t, func(run func(string) string) {
		watchServices(t, run)
		checkHost(t)
		burnIn(t)
		restart(t, run)
	})
}

// watchServices looks at services that failed or are not installed.
func watchServices(t *testing.T, run func(string) string) {
	t.Helper()
	run("systemd-run --quiet --unit=works sleep 36000; systemd-run --quiet --unit=broken false; until systemctl is-failed broken; do sleep 0.1; done")
	states, err := NewUnits().States(t.Context(), "works.service", "broken.service", "absent.service")
	require.NoError(t, err)
	require.ElementsMatch(t, []UnitState{{Name: "works.service", Active: true}, {Name: "broken.service", Failed: true}}, states)
}

// checkHost makes a sample of the machine.
func checkHost(t *testing.T) {
	t.Helper()
	all, err := checks.ParseSelection("all")
	require.NoError(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	m, err := checks.New(checks.Config{State: disk.At(t.TempDir()), Root: "/", BootID: strings.TrimSpace(string(boot)), Checks: all,
		Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, _, err = m.Check(t.Context(), 0)
	require.NoError(t, err)
	seen := map[string]health.Status{}
	for _, c := range m.Report().Conditions {
		require.NotEqual(t, health.Unknown, c.Status, "%+v", c)
		seen[c.Checker] = c.Status
	}
	require.Contains(t, seen, "host_kernel")
	require.Contains(t, seen, "host_memory")
	_, err = os.ReadFile("/proc/1/mountinfo")
	require.NoError(t, err)
}

// burnIn runs a test outside the agent's unit.
func burnIn(t *testing.T) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	const admin = 1 << 21 // CAP_SYS_ADMIN, as a reset of a GPU needs
	require.Zero(t, capabilities(t, string(own))&admin)
	v := repair.Verify{
		DCGM: "no-dcgmi", BurnIn: []string{"/bin/grep", "CapEff", "/proc/self/status"}, Outside: repair.FindOutside(NewUnits().Present()),
		WriteDisk: func(context.Context) (string, error) { return "", errors.New("not part of the test") },
		Health:    func(context.Context, int) ([]health.Finding, int, error) { return nil, 1, nil },
	}
	out, err := v.Run(t.Context(), execution.Task{
		Payload: task.Payload{Params: task.VerifyParams{Rung: recovery.RungReboot}.Encode()}, Note: func(string) {}, Dir: t.TempDir(),
	})
	require.NoError(t, err)
	r, ok := out.(task.VerifyResult)
	require.True(t, ok)
	last := r.Tests[len(r.Tests)-1]
	require.True(t, last.OK, "%+v", last)
	require.NotZero(t, capabilities(t, last.Detail)&admin, last.Detail)
}

// capabilities reads the effective capabilities in a status file of a process.
func capabilities(t *testing.T, status string) (set uint64) {
	t.Helper()
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			for _, digit := range strings.TrimSpace(text) {
				set = set<<4 | uint64(strings.IndexRune("0123456789abcdef", digit))
			}
		}
	}
	require.NotZero(t, set, status)
	return set
}

// restart makes systemd restart the machine, which stops its services first.
func restart(t *testing.T, run func(string) string) {
	t.Helper()
	signal.Ignore(syscall.SIGTERM) // systemd stops the unit of this test too
	const file = "/run/stopped"
	run("systemd-run --quiet --unit=last --property=ExecStopPost='/bin/touch " + file + "' sleep 36000")
	require.NoError(t, NewUnits().Reboot(t.Context()))
	require.Eventually(t, func() bool {
		_, err := os.Stat(file)
		return err == nil
	}, time.Minute, 20*time.Millisecond)
}
