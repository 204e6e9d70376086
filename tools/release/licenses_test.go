package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLicenses: every module of the shipped programs has a license that they may contain.
func TestLicenses(t *testing.T) {
	t.Parallel()
	modules := map[string]string{}
	for _, p := range []platform{{"linux", "amd64"}, {"darwin", "arm64"}} {
		args := []string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{with .Replace}}{{.Path}} {{.Version}}{{else}}{{.Path}} {{.Version}}{{end}}{{end}}{{end}}"}
		for _, name := range programsOf(p) {
			args = append(args, "./cmd/"+name)
		}
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+p.os, "GOARCH="+p.arch)
		out, err := cmd.Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				modules[path] = version
			}
		}
	}
	known, err := readLicenses(t.Context(), "../..")
	require.NoError(t, err)
	require.Greater(t, len(modules), 30)
	require.Contains(t, modules, "go.temporal.io/sdk")
	for path, version := range modules {
		ids, err := known.of(path, version)
		assert.NoError(t, err, path)
		t.Log(path, version, ids)
	}
	for key := range unlicensed() {
		path, version, _ := strings.Cut(key, "@")
		require.Equal(t, version, modules[path], "no program links %s, so remove it from the list", key)
		folder, err := known.folder(path, version)
		require.NoError(t, err)
		_, err = licensesIn(folder)
		require.ErrorContains(t, err, "no license", "%s has a license, so remove it from the list", key)
	}
	std, err := known.of(standardLibrary, "")
	require.NoError(t, err)
	require.Equal(t, []string{"BSD-3-Clause"}, std)
}

// TestRefusedLicenses: a module without a license, with an unknown one, or with one that is not
// allowed stops the release.
func TestRefusedLicenses(t *testing.T) {
	t.Parallel()
	apache, err := os.ReadFile("../../LICENSE")
	require.NoError(t, err)
	refused := func(files map[string]string) error {
		folder := t.TempDir()
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
		}
		_, err := licensesIn(folder)
		return err
	}
	require.NoError(t, refused(map[string]string{"LICENSE.txt": string(apache)}))
	require.ErrorContains(t, refused(map[string]string{"README": string(apache)}), "no license")
	require.ErrorContains(t, refused(map[string]string{"LICENSE": "You may use this on Sundays."}), "unknown license")
	require.ErrorContains(t, refused(map[string]string{"LICENSE": "Business Source License 1.1\n\nParameters\n\nLicensor: Example"}), "unknown license")
	samples := strings.TrimSpace(output(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/licensecheck"))
	for _, id := range []string{"AGPL-3.0", "SSPL-1.0"} {
		text, err := os.ReadFile(filepath.Join(samples, "testdata", id+".t1"))
		require.NoError(t, err)
		require.ErrorContains(t, refused(map[string]string{"LICENSE": string(text)}), "license "+id, "alone")
		require.ErrorContains(t, refused(map[string]string{"LICENSE": string(apache), "COPYING": string(text)}), "license "+id, "beside another one")
	}
}
