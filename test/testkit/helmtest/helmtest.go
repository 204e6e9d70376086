// Package helmtest runs Helm on the chart of the control plane, in the version that tools/helm pins.
package helmtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// kubernetes is the version of the cluster for which charts are rendered. Without it, a Helm that go builds assumes v1.20.
const kubernetes = "v1.36.0"

// Helm is Helm's program and the chart.
type Helm struct {
	// Chart is the chart's folder.
	Chart string

	program, home string
}

// New builds Helm, which takes minutes, or finds it in Go's cache. root is the path of the repository. The
// test is skipped under -short.
func New(tb testing.TB, root string) Helm {
	tb.Helper()
	if testing.Short() {
		tb.Skip("builds Helm; not under -short")
	}
	cmd := exec.CommandContext(tb.Context(), "go", "-C", filepath.Join(root, "tools", "helm"), "tool", "-n", "helm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(tb, err, "building Helm: %s", out)
	chart, err := filepath.Abs(filepath.Join(root, "deploy", "helm", "gpuaas"))
	require.NoError(tb, err)
	h := Helm{chart, strings.TrimSpace(string(out)), tb.TempDir()}
	h.depend(tb)
	return h
}

// depend reads the files of the chart and of its tests, because go test's cache depends on files that the test
// itself reads.
func (h Helm) depend(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, filepath.WalkDir(filepath.Dir(h.Chart), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	}))
}

// Required are arguments with the values that are required, All those with every option.
func (h Helm) Required() []string { return []string{"--values", h.file("required.yaml")} }

// All are arguments with every option.
func (h Helm) All() []string { return append(h.Required(), "--values", h.file("all.yaml")) }

func (h Helm) file(name string) string { return filepath.Join(h.Chart, "..", "testdata", name) }

// Run runs a command of Helm, without the configuration of the user. It returns the output, and after a
// failure also the messages.
func (h Helm) Run(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	if args[0] == "lint" || args[0] == "template" {
		args = slices.Insert(slices.Clone(args), 1, "--kube-version="+kubernetes)
	}
	cmd := exec.CommandContext(tb.Context(), h.program, args...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+h.home, "HELM_CACHE_HOME="+h.home, "HELM_DATA_HOME="+h.home)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

// Render returns the chart's objects in YAML. No object has a key twice.
func (h Helm) Render(tb testing.TB, namespace string, values ...string) (objects []string) {
	tb.Helper()
	out, err := h.Run(tb, append([]string{"template", "release", h.Chart, "--namespace", namespace}, values...)...)
	require.NoError(tb, err, out)
	for text := range strings.SplitSeq("\n"+out, "\n---\n") {
		var o map[string]any
		require.NoError(tb, yaml.UnmarshalStrict([]byte(text), &o), text)
		if len(o) > 0 {
			objects = append(objects, text)
		}
	}
	return objects
}
