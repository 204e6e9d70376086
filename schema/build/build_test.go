package build

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A build without a version from the linker or the module reports its commit, or
// that it is a development build; never the toolchain's placeholder.
func TestRead(t *testing.T) {
	t.Parallel()
	b := Read()
	require.NotEmpty(t, b.Version)
	require.NotEqual(t, "(devel)", b.Version)
	require.Equal(t, runtime.Version(), b.Go)
	require.Equal(t, b.Version, Version())
}
