package dev

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServersOfThisMachineAreNotBuilt: ./task build:stack and gpuaas dev up agree on which servers they use
// instead of building them.
func TestServersOfThisMachineAreNotBuilt(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs(filepath.Join("..", "..", "tools", "has-engine.sh"))
	require.NoError(t, err)
	for name, variable := range map[string]string{"temporal": varTemporalAddress, "vault": varVaultAddr} {
		empty, installed := t.TempDir(), t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(installed, name), []byte("#!/bin/sh\n"), 0o700))
		for _, c := range []struct {
			path, address string
			want          kind
		}{{empty, "", kindEmbedded}, {installed, "", kindPath}, {empty, "server:1", kindExternal}, {installed, "server:1", kindExternal}} {
			cmd := exec.CommandContext(t.Context(), "/bin/sh", script, name)
			cmd.Env = []string{"PATH=" + c.path, variable + "=" + c.address}
			out, err := cmd.CombinedOutput()
			chosen := chooser{
				getenv: func(string) string { return c.address },
				look: func(program string) string {
					path := filepath.Join(c.path, program)
					if _, err := os.Stat(path); err != nil {
						return ""
					}
					return path
				},
			}.engine(variable, name)
			require.Equal(t, c.want, chosen.Kind)
			require.Equal(t, chosen.Kind != kindEmbedded, err == nil, "%+v: %s", c, out)
		}
	}
}
