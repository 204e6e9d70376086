package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The digest names the content: the same binary gives the same package.
func TestBuildIsRepeatable(t *testing.T) {
	dir := t.TempDir()
	agent, out := filepath.Join(dir, "agent"), filepath.Join(dir, "package.tar.gz")
	require.NoError(t, os.WriteFile(agent, []byte("one"), 0o600))
	first, err := pack(agent, nil, "", out)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(agent, 0o700))
	second, err := pack(agent, nil, "", out)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.NoError(t, os.WriteFile(agent, []byte("two"), 0o600))
	third, err := pack(agent, nil, "", out)
	require.NoError(t, err)
	require.NotEqual(t, first, third)
	left, err := filepath.Glob(out + ".*")
	require.NoError(t, err)
	require.Empty(t, left)
}

// A package of several architectures has a binary for each.
func TestPackArchitectures(t *testing.T) {
	dir := t.TempDir()
	agent, out := filepath.Join(dir, "agent"), filepath.Join(dir, "package.tar.gz")
	require.NoError(t, os.WriteFile(agent, []byte("one"), 0o600))
	licenses := filepath.Join(dir, "LICENSES")
	require.NoError(t, os.WriteFile(licenses, []byte("MIT"), 0o600))
	_, err := pack("", []string{"amd64=" + agent, "arm64=" + agent}, licenses, out)
	require.NoError(t, err)
	listed, err := exec.Command("tar", "-tzf", out).Output()
	require.NoError(t, err)
	require.Equal(t, "gpuaas-node-agent-amd64\ngpuaas-node-agent-arm64\nLICENSES\ngpuaas-node-agent.service\ninstall-node-agent.sh\n", string(listed))
	_, err = pack("", []string{"riscv64=" + agent}, "", out)
	require.ErrorContains(t, err, "not amd64=FILE or arm64=FILE")
}
