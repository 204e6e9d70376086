package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newTestRelease is a release of this repository with programs that only contain text.
func newTestRelease(t *testing.T) *release {
	t.Helper()
	folder := t.TempDir()
	source, err := filepath.Abs("../..")
	require.NoError(t, err)
	r := &release{
		source: source, out: filepath.Join(folder, "dist"), work: filepath.Join(folder, "work"), log: t.Output(),
		platforms: []platform{{"linux", "amd64"}, {"linux", "arm64"}},
		version:   version{Described: "v1.2.3", Number: "1.2.3", Commit: "0123456789", Time: time.Unix(1_700_000_000, 0).UTC()},
	}
	for _, p := range r.platforms {
		for _, name := range programsOf(p) {
			write(t, filepath.Join(r.bin(p), name), name+" of "+p.String())
		}
	}
	write(t, noticesIn(r.stage()), "licenses")
	write(t, filepath.Join(r.stage(), "man", "gpuaas.1.gz"), "manual")
	for _, name := range []string{"gpuaas.bash", "_gpuaas", "gpuaas.fish"} {
		write(t, filepath.Join(r.stage(), "completions", name), name)
	}
	require.NoError(t, os.MkdirAll(r.out, 0o755))
	return r
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o755)) //nolint:gosec // a program
}

// built runs the stages and returns the digests of the artifacts.
func built(t *testing.T, r *release, stages ...func(*release, context.Context) error) map[string]string {
	t.Helper()
	for _, s := range stages {
		require.NoError(t, s(r, t.Context()))
	}
	names, err := artifactsIn(r.out)
	require.NoError(t, err)
	sums := map[string]string{}
	for _, name := range names {
		sums[name], _, err = digest(filepath.Join(r.out, name))
		require.NoError(t, err)
	}
	return sums
}

// output runs a program that must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, out)
	return string(out)
}

// TestReproducible: two builds in different folders give the same bytes.
func TestReproducible(t *testing.T) {
	t.Parallel()
	stages := []func(*release, context.Context) error{(*release).buildArchives, (*release).buildPackages, (*release).buildImages, (*release).buildChecksums}
	first := built(t, newTestRelease(t), stages...)
	require.Len(t, first, 2+1+2*2*len(packageNames())+len(images()))
	again := newTestRelease(t)
	again.version.Time = again.version.Time.In(time.FixedZone("", 3600)).UTC()
	require.Equal(t, first, built(t, again, stages...))
	other := newTestRelease(t)
	write(t, filepath.Join(other.bin(other.platforms[0]), "gpuaas-api"), "changed")
	changed := built(t, other, stages...)
	require.NotEqual(t, first["gpuaas-api_1.2.3_amd64.deb"], changed["gpuaas-api_1.2.3_amd64.deb"])
	require.Equal(t, first["gpuaas-worker_1.2.3_amd64.deb"], changed["gpuaas-worker_1.2.3_amd64.deb"])
}
