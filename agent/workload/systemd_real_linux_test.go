package workload

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/systemdtest"
)

// machineVar is set for a test that runs on a machine of systemdtest.
const machineVar = "GPUAAS_TEST_MACHINE"

// onMachine runs the test with that name on a machine with a real systemd: it boots one, and
// runs the test binary there, with the limits of the agent's unit.
// run runs a shell command.
func onMachine(t *testing.T, test func(run func(command string) string)) {
	t.Helper()
	if os.Getenv(machineVar) != "" {
		test(func(command string) string {
			out, err := exec.Command("sh", "-c", command).CombinedOutput()
			require.NoError(t, err, "%s: %s", command, out)
			return strings.TrimSpace(string(out))
		})
		return
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "console"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	pid := systemdtest.Boot(t, "workloads", log)
	binary, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(fmt.Sprintf("/proc/%d/root/run/workload.test", pid), binary, 0o700))
	unit := "systemd-run --wait --pipe --quiet --setenv=" + machineVar + "=1 " + hardening(t)
	out, err := systemdtest.Command(pid, unit+" /run/workload.test -test.run='^"+t.Name()+"$' -test.timeout=5m").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "no tests to run")
}

// hardening returns options of systemd-run that limit a service as the agent's unit limits
// the agent.
func hardening(t *testing.T) string {
	t.Helper()
	unit, err := os.ReadFile("../../deploy/package/gpuaas-node-agent.service")
	require.NoError(t, err)
	var options []string
	for line := range strings.Lines(string(unit)) {
		name, _, ok := strings.Cut(line, "=")
		limits := strings.HasPrefix(name, "Protect") || strings.HasPrefix(name, "Private") || strings.HasPrefix(name, "Restrict") ||
			strings.HasPrefix(name, "SystemCall") || name == "CapabilityBoundingSet" || name == "NoNewPrivileges"
		if ok && limits {
			options = append(options, "--property='"+strings.TrimSpace(line)+"'")
		}
	}
	require.Greater(t, len(options), 10)
	return strings.Join(options, " ")
}

// driverOfMachine is the driver that NewSystemd makes.
func driverOfMachine(t *testing.T) *systemdDriver {
	t.Helper()
	made, err := NewSystemd(Config{Slice: DefaultSlice})
	require.NoError(t, err)
	d, ok := made.(*systemdDriver)
	require.True(t, ok)
	return d
}

// stubborn is a command that ignores the signal of a stop.
const stubborn = `sh -c 'trap "" TERM; while :; do sleep 1000 & wait; done'`

// TestRealSystemd drains units of a real systemd: one that is restarted always, one that
// ignores its signal, and one below another slice.
func TestRealSystemd(t *testing.T) {
	t.Parallel()
	onMachine(t, func(run func(string) string) { drainUnits(t, run) })
}

func drainUnits(t *testing.T, run func(string) string) {
	t.Helper()
	start := "systemd-run --quiet --collect --property=TimeoutStopSec=300 --slice=gpuaas-workloads"
	run(start + ".slice --property=Restart=always --unit=always sleep 36000")
	run(start + "-tenant.slice --unit=tenant sleep 36000")
	run(start + ".slice --unit=stubborn " + stubborn)
	run("systemd-run --quiet --collect --unit=system sleep 36000")
	d := driverOfMachine(t)
	running := listed(t, d)
	require.Equal(t, []string{"always.service", "stubborn.service", "tenant.service"}, names(running))
	require.WithinDuration(t, time.Now(), running[0].Since, time.Minute)
	require.False(t, running[1].Stopping)

	drain := func(force bool, within time.Duration) task.DrainResult {
		out, err := Drain{Workloads: d, Now: time.Now}.Run(t.Context(),
			drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(within), Force: force}))
		require.NoError(t, err)
		result, ok := out.(task.DrainResult)
		require.True(t, ok)
		return result
	}
	result := drain(false, 5*time.Second)
	require.Equal(t, []string{"always.service", "tenant.service"}, result.Stopped)
	require.Len(t, result.Blocked, 1)
	require.Equal(t, []string{"stubborn.service", "systemd"}, []string{result.Blocked[0].Workload, result.Blocked[0].Kind})
	require.True(t, listed(t, d)[0].Stopping)
	require.Equal(t, task.DrainResult{Stopped: []string{"stubborn.service"}}, drain(true, 0))
	require.Empty(t, listed(t, d))
	require.Equal(t, "active", run("systemctl is-active system.service"))
	require.NoError(t, d.Stop(t.Context(), "tenant.service"), "a unit that is gone")
	require.NoError(t, d.Kill(t.Context(), "tenant.service"))
}

// TestRealSystemdKill ends a unit by force that systemd would restart, although it was not
// asked to stop before.
func TestRealSystemdKill(t *testing.T) {
	t.Parallel()
	onMachine(t, func(run func(string) string) { killUnit(t, run) })
}

func killUnit(t *testing.T, run func(string) string) {
	t.Helper()
	run("systemd-run --quiet --slice=gpuaas-workloads.slice --property=Restart=always --unit=again " + stubborn)
	d := driverOfMachine(t)
	require.NoError(t, d.Kill(t.Context(), "again.service"))
	require.Eventually(t, func() bool { return len(listed(t, d)) == 0 }, time.Minute, 20*time.Millisecond)
	require.Equal(t, "0", run("systemctl show -P NRestarts again.service"))
}

// TestRealUnits stops and starts a unit and waits for it, as for the Docker daemon.
func TestRealUnits(t *testing.T) {
	t.Parallel()
	onMachine(t, func(run func(string) string) { startUnit(t, run) })
}

func startUnit(t *testing.T, run func(string) string) {
	t.Helper()
	b := systemBus()
	run("systemd-run --quiet --on-active=36000 --unit=work sleep 36000")
	require.NoError(t, b.startAndWait(t.Context(), "work.service"))
	active, err := b.active(t.Context(), "work.service")
	require.NoError(t, err)
	require.True(t, active)
	require.NoError(t, b.stopAndWait(t.Context(), "work.service"))
	active, err = b.active(t.Context(), "work.service")
	require.NoError(t, err)
	require.False(t, active)
	active, err = b.active(t.Context(), "absent.service")
	require.NoError(t, err)
	require.False(t, active)
	require.Error(t, b.startAndWait(t.Context(), "absent.service"))
}
