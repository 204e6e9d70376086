package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

func TestNumber(t *testing.T) {
	t.Parallel()
	dpkg := need.Program(t, "dpkg", "use Debian or Ubuntu")
	at := time.Date(2026, 11, 28, 22, 0, 0, 0, time.UTC)
	before := "0"
	for _, c := range []struct{ described, want string }{
		{"4d5c4bef", "0.0.0~git.20261128220000.4d5c4bef"},
		{"v0.1.0-rc.1", "0.1.0~rc.1"},
		{"v0.1.0-rc.1-3-g4d5c4bef", "0.1.0~rc.1+3.g4d5c4bef"},
		{"v0.1.0", "0.1.0"},
		{"v0.1.0-dirty", "0.1.0+dirty"},
		{"v0.1.1", "0.1.1"},
		{"v0.1.1-12-g4d5c4bef", "0.1.1+12.g4d5c4bef"},
		{"v0.1.1-12-g4d5c4bef-dirty", "0.1.1+12.g4d5c4bef.dirty"},
		{"v0.2.0", "0.2.0"},
	} {
		got := number(c.described, at)
		require.Equal(t, c.want, got)
		require.NoError(t, exec.Command(dpkg, "--compare-versions", before, "lt", got).Run(), "%s must sort before %s", before, got)
		before = got
	}
}

// TestVersionOfClone: the version does not depend on the configuration of the clone, and
// an untracked file, which Go may compile, makes it dirty.
func TestVersionOfClone(t *testing.T) {
	t.Parallel()
	need.Program(t, "git", "install Git")
	clone := t.TempDir()
	git := func(args ...string) {
		output(t, "git", append([]string{"-C", clone, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	}
	git("init", "--quiet")
	git("commit", "--quiet", "--allow-empty", "--message", "First")
	first, err := readVersion(t.Context(), clone)
	require.NoError(t, err)
	require.Equal(t, first.Commit[:12], first.Described)
	git("config", "core.abbrev", "20")
	again, err := readVersion(t.Context(), clone)
	require.NoError(t, err)
	require.Equal(t, first, again)
	write(t, filepath.Join(clone, "new.go"), "package main")
	changed, err := readVersion(t.Context(), clone)
	require.NoError(t, err)
	require.Equal(t, first.Described+"-dirty", changed.Described)
}

// TestPrereleaseFileNames: GitHub replaces "~" in the names of a release's files, so that
// the checksums would name other files than the release has.
func TestPrereleaseFileNames(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	r.version.Number = "1.2.3~rc.1"
	for name := range built(t, r, (*release).buildArchives, (*release).buildPackages, (*release).buildImages) {
		require.NotContains(t, name, "~")
		_, err := r.programsIn(name)
		require.NoError(t, err)
	}
	deb := filepath.Join(r.out, "gpuaas-api_1.2.3-rc.1_amd64.deb")
	require.Equal(t, "1.2.3~rc.1\n", output(t, need.Program(t, "dpkg-deb", "use Debian or Ubuntu"), "-f", deb, "Version"))
}

// TestPlatforms: a release is for known platforms, with one for the images and packages.
func TestPlatforms(t *testing.T) {
	t.Parallel()
	for platforms, want := range map[string]string{
		"linux/riscv64":             `platform "linux/riscv64" is not linux or darwin with amd64 or arm64`,
		"linux":                     `platform "linux" is not linux or darwin`,
		"darwin/arm64,darwin/amd64": "which images and packages need",
	} {
		folder := t.TempDir()
		_, err := open(t.Context(), options{source: "../..", out: folder, work: folder, platforms: platforms}, t.Output())
		require.ErrorContains(t, err, want)
	}
}
