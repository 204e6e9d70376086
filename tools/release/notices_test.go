package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNotices: the file has the license and the notice of each module of a program, and a text that
// modules share once.
func TestNotices(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	r.platforms = r.platforms[:1]
	require.NoError(t, os.RemoveAll(r.bin(r.platforms[0])))
	program := filepath.Join(r.bin(r.platforms[0]), "gpuaas-node-agent")
	require.NoError(t, r.command(t.Context(), nil, "go", "build", "-o", program, "./cmd/gpuaas-node-agent"))
	require.NoError(t, r.buildNotices(t.Context()))
	text, err := os.ReadFile(noticesIn(r.stage()))
	require.NoError(t, err)
	_, linked, err := linkedModules(program)
	require.NoError(t, err)
	require.Greater(t, len(linked), 3)
	known, err := readLicenses(t.Context(), r.source)
	require.NoError(t, err)
	for _, m := range linked {
		require.Contains(t, string(text), "\n"+m.Path+" "+m.Version+"\n")
		texts, err := known.texts(m.Path, m.Version)
		require.NoError(t, err)
		require.NotEmpty(t, texts, m.Path)
		for _, license := range texts {
			require.Contains(t, string(text), license, m.Path)
		}
	}
}

// TestNoticesOf: modules with the same text share it, and the order does not depend on that of a map.
func TestNoticesOf(t *testing.T) {
	t.Parallel()
	modules := map[string][]string{"MIT": {"b v1", "a v1"}, "BSD": {"c v1"}}
	text := noticesOf(modules)
	require.Regexp(t, `(?s)^The programs.*====\na v1\nb v1\n\nMIT\n\n=+\nc v1\n\nBSD\n$`, text)
	for range 10 {
		require.Equal(t, text, noticesOf(modules))
	}
}

// TestNoticesNeedPrograms: a file that is not a program of Go stops the release.
func TestNoticesNeedPrograms(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, newTestRelease(t).buildNotices(t.Context()), "licenses of ")
}
