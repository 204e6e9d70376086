package identity

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/envfile"
)

// readOnlyDisk creates no file.
type readOnlyDisk struct{ disk.OS }

func (readOnlyDisk) Create(string) (disk.File, error) { return nil, syscall.EROFS }

func TestEnvFileLinkUnchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(real, []byte(envfile.TokenVar+"=a\n"), 0o600))
	require.NoError(t, os.Symlink(real, link))
	_, err := replaceEnvToken(disk.At(dir), link, "b", func(string) bool { return true })
	require.ErrorContains(t, err, "is a link")
	_, err = replaceEnvToken(disk.StateDir{FS: readOnlyDisk{}}, real, "b", func(string) bool { return true })
	require.ErrorIs(t, err, syscall.EROFS)
	text, err := os.ReadFile(real)
	require.NoError(t, err)
	require.Equal(t, envfile.TokenVar+"=a\n", string(text))
}
