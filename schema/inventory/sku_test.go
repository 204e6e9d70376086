package inventory_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/inventory"
)

func TestSKU(t *testing.T) {
	t.Parallel()
	h100 := inventory.SKU{Name: "h100", GPUModel: "H100", MaxGPUs: 8, MinCPUs: 64, MinMemoryBytes: 1 << 39, Active: true}
	require.NoError(t, h100.CheckRegistration(8))
	require.Error(t, h100.CheckRegistration(9))
	require.Error(t, h100.CheckRegistration(-1))
	cpu := inventory.SKU{Name: "cpu-dev", Active: true}
	require.NoError(t, cpu.CheckRegistration(0))
	require.ErrorContains(t, cpu.CheckRegistration(1), `SKU "cpu-dev" has no GPUs`)
	h100.Active = false
	require.ErrorContains(t, h100.CheckRegistration(8), "not active")

	gpu := inventory.GPU{Model: "NVIDIA H100 80GB HBM3"}
	require.Empty(t, h100.Mismatches(1, inventory.Facts{CPUs: 64, MemoryBytes: 1 << 39, GPUs: []inventory.GPU{gpu}}))
	require.Len(t, h100.Mismatches(2, inventory.Facts{CPUs: 2, MemoryBytes: 1, GPUs: []inventory.GPU{{Model: "NVIDIA A100"}}}), 4)
}

func TestValidDrivers(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"systemd", "none", "docker,systemd", "my_driver-2,docker", strings.Repeat("x", 32)} {
		require.True(t, inventory.ValidDrivers(good), good)
	}
	for _, bad := range []string{
		"", ",", "docker,", ",docker", "docker,docker", "docker, systemd", "none,docker", "docker,none", "a b", "docker;reboot", "docker\n",
		strings.Repeat("x", 33), strings.Repeat("x", 20) + "," + strings.Repeat("y", 20),
	} {
		require.False(t, inventory.ValidDrivers(bad), "%q", bad)
	}
}
