package dev

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWipeOfLibvirt: a wipe removes the folder of virtual machines, unless it has files of one: a
// machine outlives the stack.
func TestWipeOfLibvirt(t *testing.T) {
	t.Parallel()
	for file, kept := range map[string]bool{"": false, "locks/0198f000": false, "consoles/0198f000.log": true, "boot/0198f000.json": true, "disks/0198f000.img": true} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			var messages bytes.Buffer
			s := &stack{layout: layout{dir: t.TempDir()}, messages: &messages}
			require.NoError(t, s.layout.make())
			for _, dir := range []string{"consoles", "boot", "disks", "locks"} {
				require.NoError(t, os.MkdirAll(filepath.Join(libvirtDir(s.layout), dir), privateDir))
			}
			if file != "" {
				require.NoError(t, os.WriteFile(filepath.Join(libvirtDir(s.layout), file), nil, privateFile))
			}
			require.NoError(t, s.wipe(t.Context()))
			if !kept {
				require.NoDirExists(t, s.layout.dir)
				return
			}
			require.FileExists(t, filepath.Join(libvirtDir(s.layout), file))
			require.NoDirExists(t, s.layout.secretsDir())
			require.Contains(t, messages.String(), "kept       "+libvirtDir(s.layout)+": the virtual machine gpuaas-0198f000 may still run")
			require.NoError(t, os.Remove(filepath.Join(libvirtDir(s.layout), file)))
			require.NoError(t, s.wipe(t.Context()), "again, after the machine was deleted")
			require.NoDirExists(t, s.layout.dir)
		})
	}
}
