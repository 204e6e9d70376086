package agent

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/workload"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

func TestDriverChoice(t *testing.T) {
	t.Parallel()
	c := Config{Drivers: devworkload.Drivers()}
	for driver, want := range map[string]string{
		"": "workload.unset", inventory.DriverNone: "workload.Unmanaged", devworkload.Name: "*workload.Driver", inventory.DriverSystemd: "*workload.systemdDriver", inventory.DriverDocker: "*workload.dockerDriver",
	} {
		c.WorkloadDriver = driver
		got, err := c.newDriver(workload.Config{State: disk.At(t.TempDir() + "/state"), Changed: func() {}, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		require.Equal(t, want, fmt.Sprintf("%T", got))
	}
	list, err := workload.Unmanaged{}.List(t.Context())
	require.NoError(t, err)
	require.NotNil(t, list)
}

// TestNoProcessDriverInProduction: only a program that registers the driver
// has it, and the error lists the available drivers.
func TestNoProcessDriverInProduction(t *testing.T) {
	t.Parallel()
	c := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": "process"}, "")
	require.ErrorContains(t, c.Validate(), `GPUAAS_WORKLOAD_DRIVER: this agent has no driver "process"; it has docker, none, systemd`)
}
