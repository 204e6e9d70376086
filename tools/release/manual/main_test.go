package main

import (
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// TestManual: the pages have the version and the month in UTC, and Bash reads the completions. The
// package links the CLI, so the test also fails if the module lacks one of its modules.
func TestManual(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, write(folder, "1.2.3", time.Date(2026, 11, 30, 20, 0, 0, 0, time.FixedZone("", -5*3600))))
	file, err := os.Open(filepath.Join(folder, "man", "gpuaas-node-register.1.gz"))
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is open for reading only
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	page, err := io.ReadAll(unzipped)
	require.NoError(t, err)
	require.Contains(t, string(page), `"Dec 2026" "gpuaas 1.2.3"`)
	require.Contains(t, string(page), "gpuaas node register HOST")
	require.Zero(t, unzipped.ModTime)
	bash := need.Program(t, "bash", "install it")
	out, err := exec.CommandContext(t.Context(), bash, "-euc", `. "$1" && complete -p gpuaas`, "-", filepath.Join(folder, "completions", "gpuaas.bash")).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "__start_gpuaas")
}
