package sparse_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/deploy/vm-image/sparse"
)

const size = 64 << 10

// fileSystem has content in its first block, in the middle and in the last bytes.
func fileSystem() []byte {
	fs := make([]byte, size)
	fs[1024], fs[20000], fs[size-1] = 'a', 'b', 'c'
	return fs
}

func emptyDisk(t *testing.T) *os.File {
	t.Helper()
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = disk.Close() })
	require.NoError(t, disk.Truncate(size))
	return disk
}

func TestFormatOnce(t *testing.T) {
	t.Parallel()
	packed, err := sparse.Pack(bytes.NewReader(fileSystem()))
	require.NoError(t, err)
	require.Less(t, len(packed), 4*4096)
	disk := emptyDisk(t)
	formatted, err := sparse.Format(disk, packed)
	require.NoError(t, err)
	require.True(t, formatted)
	got, err := os.ReadFile(disk.Name())
	require.NoError(t, err)
	require.Equal(t, fileSystem(), got)

	_, err = disk.WriteAt([]byte("kept"), 20000)
	require.NoError(t, err)
	formatted, err = sparse.Format(disk, packed)
	require.NoError(t, err)
	require.False(t, formatted)
	got, err = os.ReadFile(disk.Name())
	require.NoError(t, err)
	require.Equal(t, "kept", string(got[20000:20004]))
}

// failing is a disk that fails after some writes.
type failing struct {
	*os.File
	left int
}

var errOff = errors.New("the machine was switched off")

// WriteAt implements sparse.Disk.
func (f *failing) WriteAt(data []byte, offset int64) (int, error) {
	if f.left == 0 {
		return 0, errOff
	}
	f.left--
	return f.File.WriteAt(data, offset)
}

// TestInterrupted: a disk on which a format was interrupted after any write is formatted again.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	packed, err := sparse.Pack(bytes.NewReader(fileSystem()))
	require.NoError(t, err)
	for writes := range 3 {
		disk := emptyDisk(t)
		_, err := sparse.Format(&failing{disk, writes}, packed)
		require.ErrorIs(t, err, errOff)
		formatted, err := sparse.Format(disk, packed)
		require.NoError(t, err)
		require.True(t, formatted)
		got, err := os.ReadFile(disk.Name())
		require.NoError(t, err)
		require.Equal(t, fileSystem(), got)
	}
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	packed, err := sparse.Pack(bytes.NewReader(fileSystem()))
	require.NoError(t, err)
	for _, damaged := range [][]byte{nil, packed[1:], packed[:100], packed[8+4096:]} {
		formatted, err := sparse.Format(emptyDisk(t), damaged)
		require.ErrorContains(t, err, "damaged")
		require.False(t, formatted)
	}
}
