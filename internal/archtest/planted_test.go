package archtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// projectLinters are the linters with project-specific settings.
var projectLinters = []string{"depguard", "forbidigo", "gochecknoglobals", "gochecknoinits", "funlen", "revive", "sloglint"}

// TestPlantedLint runs golangci-lint with the project's configuration on the planted
// module and compares its findings with the want comments, in both directions.
func TestPlantedLint(t *testing.T) {
	t.Parallel()
	dir := plant(t)
	want := wanted(t, dir, "// want: ")
	// Oversized files are generated.
	write(t, dir, "internal/planted/long.go", "package planted\n"+strings.Repeat("\n// Filler.\n", maxFileLines/2))
	want = append(want, finding{"internal/planted/long.go", maxFileLines + 1, "revive"})
	write(t, dir, "internal/planted/longfunc.go", "package planted\n\n// Long is long.\nfunc Long(n int) int {\n"+strings.Repeat("\tn++\n", 81)+"\treturn n\n}\n")
	want = append(want, finding{"internal/planted/longfunc.go", 4, "funlen"})

	out := tool(t, dir, "golangci-lint", "run", "--enable-only", strings.Join(projectLinters, ","),
		"--output.json.path", "stdout", "--output.text.path", "stderr", "--show-stats=false", "./...")
	var report struct {
		Issues []struct {
			FromLinter string
			Text       string
			Pos        struct {
				Filename string
				Line     int
			}
		}
	}
	require.NoError(t, json.NewDecoder(strings.NewReader(out)).Decode(&report), "%s", out)
	var got []finding
	for _, i := range report.Issues {
		got = append(got, finding{filepath.ToSlash(i.Pos.Filename), i.Pos.Line, i.FromLinter})
	}
	compare(t, want, got)
}

// TestPlantedWorkflowcheck does the same for workflowcheck, which reports the line of
// the workflow function.
func TestPlantedWorkflowcheck(t *testing.T) {
	t.Parallel()
	dir := plant(t)
	config, err := filepath.Abs(filepath.Join(root, "tools", "workflowcheck.yml"))
	require.NoError(t, err)
	require.FileExists(t, config)
	out := tool(t, dir, "workflowcheck", "-config", config, "-single-line", "./workflows")
	reported := regexp.MustCompile(`(?m)^.*[/\\]nondeterministic\.go:(\d+):\d+: (.*)$`).FindAllStringSubmatch(out, -1)
	wants := wanted(t, dir, "// workflowcheck: ")
	require.NotEmpty(t, wants)
	for _, w := range wants {
		assert.True(t, slices.ContainsFunc(reported, func(m []string) bool {
			return m[1] == fmt.Sprint(w.line) && strings.Contains(m[2], w.by)
		}), "%s:%d: workflowcheck does not report %q in:\n%s", w.file, w.line, w.by, out)
	}
	assert.Len(t, reported, len(wants), "workflowcheck has unexpected findings:\n%s", out)
}

type finding struct {
	file string
	line int
	by   string
}

func compare(t *testing.T, want, got []finding) {
	t.Helper()
	require.NotEmpty(t, want)
	for _, w := range want {
		assert.Contains(t, got, w, "%s:%d: %s does not report it", w.file, w.line, w.by)
	}
	for _, g := range got {
		assert.Contains(t, want, g, "%s:%d: unexpected finding of %s", g.file, g.line, g.by)
	}
}

// wanted returns the comments that start with mark.
func wanted(t *testing.T, dir, mark string) []finding {
	t.Helper()
	var all []finding
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			if _, by, ok := strings.Cut(line, mark); ok {
				all = append(all, finding{filepath.ToSlash(rel), i + 1, by})
			}
		}
		return nil
	}))
	return all
}

// plant creates a module with the planted files and the real go.mod, go.sum and linter
// settings.
func plant(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the linters")
	}
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/planted")))
	for _, name := range []string{"go.mod", "go.sum", ".golangci.yml"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		write(t, dir, name, string(text))
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// tool runs a pinned tool in dir and returns its output, stderr last. The tool must exit
// with a non-zero status, which reports findings.
func tool(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	tools, err := filepath.Abs(filepath.Join(root, "tools", "go.mod"))
	require.NoError(t, err)
	require.FileExists(t, tools)
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=" + tools, name}, args...)...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	require.Error(t, err, "%s found nothing", name)
	return stdout.String() + stderr.String()
}
