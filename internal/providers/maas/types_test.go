package maas_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/schema/machine"
)

func TestParseTypes(t *testing.T) {
	t.Parallel()
	types, err := maas.ParseTypes([]string{"h100:64:524288:8:h100+nvme", "cpu:4:8192:0"})
	require.NoError(t, err)
	require.Equal(t, []maas.Type{{Type: machine.Type{ID: "h100", CPUs: 64, MemoryMiB: 524288, GPUs: 8}, Tags: []string{"h100", "nvme"}},
		{Type: machine.Type{ID: "cpu", CPUs: 4, MemoryMiB: 8192}}}, types)
	for _, s := range []string{"", "h100", "h100:64", "h100:x:1:1", "h100:-1:1:1", "h 100:1:1:1", "h100:1:1:1:", "h100:1:1:1:a b"} {
		_, err := maas.ParseTypes([]string{s})
		require.ErrorContains(t, err, "GPUAAS_MAAS_TYPES", s)
	}
	_, err = maas.ParseTypes([]string{"a:1:1:1", "a:2:2:2"})
	require.Error(t, err)
}
