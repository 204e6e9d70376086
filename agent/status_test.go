package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// TestStatusNamesTheDriver: the command names the configured driver, also one that this program
// lacks, and prints no time that is absent.
func TestStatusNamesTheDriver(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{
		inventory.DriverNone: inventory.DriverNone,
		devworkload.Name:     devworkload.Name,
		"other":              "other",
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			_, c := enrolledNode(t)
			c.WorkloadDriver = driver
			code, out, errOut := runCommand(t, environ(c), "status")
			require.Equal(t, schema.ExitDone, code, errOut)
			require.Regexp(t, `(?m)^workload driver +`+want, out)
			require.Equal(t, driver == "other", strings.Contains(out, `this agent has no driver "other"; it has docker, kubernetes, none, process, systemd`), out)
			require.NotContains(t, out, "no workload driver is configured")
			require.NotContains(t, out, "0001-")
		})
	}
}

// TestStatusWithoutADriver: the status says so once, in both forms.
func TestStatusWithoutADriver(t *testing.T) {
	t.Parallel()
	_, c := enrolledNode(t)
	c.WorkloadDriver = ""
	code, out, errOut := runCommand(t, environ(c), "status")
	require.Equal(t, schema.ExitDone, code, errOut)
	require.Contains(t, out, "no workload driver is configured: set GPUAAS_WORKLOAD_DRIVER")
	require.NotRegexp(t, `(?m)^workload( driver)? `, out)
	require.NotContains(t, out, "0001-")
	code, out, errOut = runCommand(t, environ(c), "status", "-o", "json")
	require.Equal(t, schema.ExitDone, code, errOut)
	require.Contains(t, out, `"workloads": []`)
	require.NotContains(t, out, "0001-")
}

// TestStatusWithoutTheTimeOfAPoll: a poll whose time is absent is not one of the year 1.
func TestStatusWithoutTheTimeOfAPoll(t *testing.T) {
	t.Parallel()
	s := Status{LastPoll: &PollStatus{OK: true}}
	require.NotContains(t, printed(t, s), "0001-")
	s.LastPoll.At = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	require.Contains(t, printed(t, s), "2026-03-01T12:00:00Z ok")
}

func printed(t *testing.T, s Status) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, s.print(&out))
	return out.String()
}
