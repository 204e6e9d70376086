package vault

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A credential has mode 0600, whatever a crash or an operator left in the directory.
func TestWriteCredential(t *testing.T) {
	t.Parallel()
	dir, err := lockDir(t.TempDir())
	require.NoError(t, err)
	defer dir.Close()
	file := filepath.Join(dir.Name(), "api-secret-id")
	for _, left := range []string{file, file + ".new"} {
		require.NoError(t, os.WriteFile(left, []byte("half"), 0o644))
	}
	require.NoError(t, writeCredential(dir, "api-secret-id", canary))
	require.Equal(t, canary, readText(t, file))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	require.NoFileExists(t, file+".new")
}
