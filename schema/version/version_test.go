package version

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRead(t *testing.T) {
	b := Read()
	require.NotEmpty(t, b.Version)
	require.Equal(t, b.Version, Version())
	require.Equal(t, runtime.Version(), b.Go)

	b = Build{Version: "v1.2.3", Commit: "0123456789abcdef", Go: "go1.26", Platform: "linux/amd64"}
	require.Equal(t, "v1.2.3 (commit 0123456789ab) go1.26 linux/amd64", b.String())
	b.Commit = ""
	require.Equal(t, "v1.2.3 go1.26 linux/amd64", b.String())
}
