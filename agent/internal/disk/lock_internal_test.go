package disk

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReleaseWithACopyInAChild holds a copy of the lock's descriptor, as a child process
// does between its fork and its exec.
func TestReleaseWithACopyInAChild(t *testing.T) {
	t.Parallel()
	s := At(t.TempDir())
	first, err := s.Lock()
	require.NoError(t, err)
	child, err := syscall.Dup(int(first.f.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(child) })
	first.Release()
	second, err := s.Lock()
	require.NoError(t, err, "the copy holds the lock")
	second.Release()
	second.Release() // changes nothing
}
