package health

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// adapters is the folder of RDMA adapters.
func (b *bench) adapters() string { return filepath.Join(b.conf.Root, "sys", "class", "infiniband") }

// port writes the files of a port of a bench's host.
func (b *bench) port(name, state, downed, symbols string) {
	b.t.Helper()
	adapter, number := filepath.Split(name)
	folder := filepath.Join(b.adapters(), adapter, "ports", number)
	require.NoError(b.t, os.MkdirAll(filepath.Join(folder, "counters"), 0o700))
	for file, content := range map[string]string{"state": state, "counters/link_downed": downed, "counters/symbol_error": symbols} {
		require.NoError(b.t, os.WriteFile(filepath.Join(folder, file), []byte(content+"\n"), 0o600))
	}
}

// TestInfiniBand: the ports of a host have the faults that the kernel's files show, and a port that never was
// active has none.
func TestInfiniBand(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.monitor()
	require.NotContains(t, b.check(m), "host_infiniband", "a host without adapters")
	b.port("mlx5_0/1", "4: ACTIVE", "3", "70")
	b.port("mlx5_1/1", "1: DOWN", "0", "0") // without a cable
	b.port("mlx5_2/1", "4: ACTIVE", "junk", "")
	require.Equal(t, host.ReasonPortsActive, b.check(m)["host_infiniband"].Reason, "earlier errors do not count")

	b.pass(time.Minute)
	b.port("mlx5_0/1", "4: ACTIVE", "4", "70")
	b.port("mlx5_2/1", "2: INIT", "0", "0")
	m = b.monitor() // the next process remembers the ports
	got := b.check(m)
	require.Equal(t, host.ReasonLinkDowned, got["host_infiniband mlx5_0/1"].Reason)
	require.Equal(t, host.ReasonPortDown, got["host_infiniband mlx5_2/1"].Reason)
	require.Contains(t, got["host_infiniband mlx5_2/1"].Detail, "INIT")
	require.NotContains(t, got, "host_infiniband mlx5_1/1")

	require.NoError(t, os.RemoveAll(filepath.Join(b.adapters(), "mlx5_2")))
	b.port("mlx5_0/1", "4: ACTIVE", "4", "191")
	b.pass(2 * time.Hour)
	got = b.check(m)
	require.Equal(t, host.ReasonPortMissing, got["host_infiniband mlx5_2/1"].Reason)
	require.Equal(t, health.RepairObserve, got["host_infiniband mlx5_2/1"].Repair)
	require.Equal(t, host.ReasonSymbolErrors, got["host_infiniband mlx5_0/1"].Reason)
	require.NoError(t, os.RemoveAll(b.adapters()))
	require.Equal(t, host.ReasonPortMissing, b.check(m)["host_infiniband mlx5_0/1"].Reason, "the driver is not loaded")
}

// TestInfiniBandNotRead: what cannot be read is unknown, and no port is missing.
func TestInfiniBandNotRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.port("mlx5_0/1", "4: ACTIVE", "0", "0")
	m := b.monitor()
	require.Equal(t, health.Healthy, b.check(m)["host_infiniband"].Status)
	require.NoError(t, os.RemoveAll(b.adapters()))
	require.NoError(t, os.WriteFile(b.adapters(), nil, 0o600))
	require.Equal(t, health.Unknown, b.check(m)["host_infiniband"].Status)
}
