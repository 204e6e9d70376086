package disk

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// smallDisk mounts a file system of a few mebibytes.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	need.Root(t, "mounting a small disk")
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.True(t, Full(err), "%v", err)
	require.NoError(t, f.Close())
}

// TestWritesOnAFullDisk: the agent's files are written on a full disk as long as the ballast
// lasts, also in its subfolders, and the ballast returns when the disk has space again.
func TestWritesOnAFullDisk(t *testing.T) {
	s := At(smallDisk(t))
	s.Ballast = s.File(BallastFile)
	require.NoError(t, s.Ensure("identity"))
	require.NoError(t, s.KeepBallast())
	require.NoError(t, s.Write(s.File("journal.json"), []byte("old")))
	junk := filepath.Join(s.Path, "junk")
	fill(t, junk)
	identity := s
	identity.Path = s.File("identity")
	require.NoError(t, identity.Write(identity.File("1.json"), make([]byte, 16<<10)))
	require.NoError(t, s.Write(s.File("journal.json"), []byte("new")))

	fill(t, filepath.Join(s.Path, "more"))
	err := s.Write(s.File("big.json"), make([]byte, 64<<10))
	require.True(t, Full(err), "%v", err)
	require.NoFileExists(t, s.File("big.json"+Staged))
	require.True(t, Full(s.KeepBallast()))
	require.NoFileExists(t, s.Ballast, "a part of the ballast would not help")
	data, err := os.ReadFile(s.File("journal.json"))
	require.NoError(t, err)
	require.Equal(t, "new", string(data))

	require.NoError(t, os.Remove(junk))
	require.NoError(t, s.KeepBallast())
	require.NoError(t, s.KeepBallast(), "it exists")
}
