package inventory_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/inventory"
)

func TestBoundedFacts(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	long := strings.Repeat("x", limit)
	for name, f := range map[string]inventory.Facts{
		"many disks":     {CPUs: 3, Disks: make([]inventory.Disk, 1e5)},
		"many GPUs":      {CPUs: 3, GPUs: make([]inventory.GPU, 1e5)},
		"many addresses": {CPUs: 3, NICs: []inventory.NIC{{Addresses: make([]string, 1e5)}}},
		"a long text":    {CPUs: 3, Kernel: long},
	} {
		got := f.Bounded()
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), limit, name)
		require.Equal(t, 3, got.CPUs, name)
	}
	usual := inventory.Facts{CPUs: 3, Disks: make([]inventory.Disk, 300), NICs: make([]inventory.NIC, 300), GPUs: make([]inventory.GPU, 16)}
	require.Equal(t, usual, usual.Bounded())
}
