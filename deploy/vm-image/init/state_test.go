package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// TestKeep: the second boot reads the boot document of the first one, without the reference.
func TestKeep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "boot.json")
	_, kept, err := readKept(path)
	require.NoError(t, err)
	require.False(t, kept)
	d := machine.BootDocument{BaseURL: "https://api:8443", Reference: "secret", Host: "gpu-17", Hosts: map[string]string{"api": "10.0.2.2"}}
	require.NoError(t, keep(path, d))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret")
	got, kept, err := readKept(path)
	require.NoError(t, err)
	require.True(t, kept)
	d.Reference = ""
	require.Equal(t, d, got)

	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, _, err = readKept(path)
	require.ErrorContains(t, err, "the boot document of the first boot")
}

// TestFindDisk: the disk is found by its serial number, also beside other disks.
func TestFindDisk(t *testing.T) {
	t.Parallel()
	blocks := t.TempDir()
	for name, serial := range map[string]string{"vda": "other\n", "vdb": machine.StateDiskSerial + "\n"} {
		require.NoError(t, os.Mkdir(filepath.Join(blocks, name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(blocks, name, "serial"), []byte(serial), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(blocks, "nvme0n1"), 0o755))
	device, err := findDisk(blocks, machine.StateDiskSerial)
	require.NoError(t, err)
	require.Equal(t, "/dev/vdb", device)
	require.NoError(t, os.RemoveAll(filepath.Join(blocks, "vdb")))
	device, err = findDisk(blocks, machine.StateDiskSerial)
	require.NoError(t, err)
	require.Empty(t, device)
}
