package worker

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/need"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// TestDrillOnFullDisk: a server with a full disk is no fault of the dump. Whether the scratch database cannot
// be created or not be filled, nothing of it is left, and the drill works when there is space.
func TestDrillOnFullDisk(t *testing.T) {
	t.Parallel()
	need.Root(t, "a small file system")
	b := newDrillBench(t)
	b.exec("CREATE TABLE bulk AS SELECT repeat(md5(i::text), 20) AS text FROM generate_series(1, 20000) i")
	file := b.dumped()
	small, folder := pgtest.NewSmall(t, "128m")
	o := DrillOptions{File: file, Progress: io.Discard, Getenv: func(name string) string {
		if name == "GPUAAS_DRILL_DATABASE_URL" {
			return small.URL()
		}
		return b.getenv(name)
	}}
	for free, says := range map[uint64]string{1 << 20: "has a full disk", 12 << 20: "No space left on device"} {
		remove := leaveFree(t, folder, free)
		r, err := Drill(t.Context(), o)
		require.ErrorContains(t, err, says)
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Contains(t, schema.AsError(err).Next, "free disk space on the server")
		require.Empty(t, r.Faults(), "the dump has no fault")
		s, err := postgres.NewScratch(t.Context(), small.URL())
		require.NoError(t, err)
		left, err := s.Clean(t.Context())
		require.NoError(t, err)
		require.Empty(t, left)
		require.NoError(t, s.Close(t.Context()))
		remove()
	}
	r, err := Drill(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, r.Faults())
}

// leaveFree fills a file system up to a number of bytes. remove empties it again.
func leaveFree(t *testing.T, folder string, free uint64) (remove func()) {
	t.Helper()
	var s syscall.Statfs_t
	require.NoError(t, syscall.Statfs(folder, &s))
	f, err := os.Create(filepath.Join(folder, "ballast"))
	require.NoError(t, err)
	defer f.Close()
	available := s.Bavail * uint64(s.Bsize)
	require.Greater(t, available, free)
	require.NoError(t, syscall.Fallocate(int(f.Fd()), 0, 0, int64(available-free)))
	return func() { require.NoError(t, os.Remove(f.Name())) }
}
