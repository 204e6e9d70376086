package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The digest names the content: the same binary gives the same package.
func TestBuildIsRepeatable(t *testing.T) {
	dir := t.TempDir()
	agent, out := filepath.Join(dir, "agent"), filepath.Join(dir, "package.tar.gz")
	require.NoError(t, os.WriteFile(agent, []byte("one"), 0o600))
	first, err := pack(agent, nil, out)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(agent, 0o700))
	second, err := pack(agent, nil, out)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.NoError(t, os.WriteFile(agent, []byte("two"), 0o600))
	third, err := pack(agent, nil, out)
	require.NoError(t, err)
	require.NotEqual(t, first, third)
	left, err := filepath.Glob(out + ".*")
	require.NoError(t, err)
	require.Empty(t, left)
}
