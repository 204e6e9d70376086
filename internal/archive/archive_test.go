package archive

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

func content(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func names(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A repeated write changes nothing, and no write replaces a file.
func TestWriteTwice(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := New(folder)
	first, err := f.Write(t.Context(), "a", content("x"))
	require.NoError(t, err)
	require.Equal(t, schema.SHA256Hex([]byte("x")), first)
	second, err := f.Write(t.Context(), "a", content("x"))
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.NoError(t, f.Check(t.Context(), "a", first))

	_, err = f.Write(t.Context(), "a", content("y"))
	require.Equal(t, "archive_occupied", schema.AsError(err).Reason)
	require.NotEmpty(t, schema.AsError(err).Next)
	require.NoError(t, f.Check(t.Context(), "a", first))
	require.Equal(t, []string{"a"}, names(t, folder))
}

// A file that exists counts as written only once its name is durable, also if an earlier write
// was stopped before that.
func TestWriteAgainMakesTheNameDurable(t *testing.T) {
	t.Parallel()
	f := New(t.TempDir())
	sync := f.sync
	f.sync = func() error { return errors.New("input/output error") }
	for range 2 {
		_, err := f.Write(t.Context(), "a", content("x"))
		require.Equal(t, "archive_unwritable", schema.AsError(err).Reason)
	}
	f.sync = sync
	_, err := f.Write(t.Context(), "a", content("x"))
	require.NoError(t, err)
}

func TestCheckReports(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := New(folder)
	sum, err := f.Write(t.Context(), "a", content("x"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a"), []byte("y"), 0o600))
	require.Equal(t, "archive_changed", schema.AsError(f.Check(t.Context(), "a", sum)).Reason)
	require.NoError(t, os.Remove(filepath.Join(folder, "a")))
	require.Equal(t, "archive_missing", schema.AsError(f.Check(t.Context(), "a", sum)).Reason)
}

// A full disk is an error with a next step, and leaves no file under the name.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	_, err := os.Stat("/dev/full")
	need.That(t, err == nil, "this system has no /dev/full")
	folder := t.TempDir()
	f := New(folder)
	f.create = func() (*os.File, error) {
		name := filepath.Join(folder, ".part-1")
		if err := os.Symlink("/dev/full", name); err != nil {
			return nil, err
		}
		return os.OpenFile(name, os.O_WRONLY, 0)
	}
	_, err = f.Write(t.Context(), "a", content("x"))
	e := schema.AsError(err)
	require.Equal(t, "archive_unwritable", e.Reason)
	require.NotEmpty(t, e.Next)
	require.Contains(t, e.Message, "no space left")
	require.Empty(t, names(t, folder))

	_, err = New(filepath.Join(folder, "absent")).Write(t.Context(), "a", content("x"))
	require.Equal(t, "archive_unwritable", schema.AsError(err).Reason)
}
