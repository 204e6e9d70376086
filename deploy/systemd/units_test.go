package systemd

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/server"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/need"
	"github.com/gpuaas/gpuaas/worker"
)

// TestExposure: systemd rates each unit as well protected. The limit is ten times the highest score of
// `systemd-analyze security` that the unit may have.
func TestExposure(t *testing.T) {
	t.Parallel()
	analyze := need.Program(t, "systemd-analyze", "install systemd 252 or later")
	for unit, limit := range map[string]string{
		"gpuaas-api.service": "15", "gpuaas-worker.service": "15", "../package/gpuaas-node-agent.service": "30",
	} {
		t.Run(filepath.Base(unit), func(t *testing.T) {
			t.Parallel()
			file := rendered(t, unit)
			out, err := exec.Command(analyze, "security", "--offline=true", "--threshold="+limit, file).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "Overall exposure level")
			out, err = exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
			require.NotRegexp(t, "Unknown (key|section)|Failed to parse|ignoring", string(out), "%v", err)
		})
	}
}

// rendered is a unit as it is installed, with a program that exists.
func rendered(t *testing.T, unit string) string {
	t.Helper()
	raw, err := os.ReadFile(unit)
	require.NoError(t, err)
	text := strings.NewReplacer("@INSTALL_ROOT@", "/opt/gpuaas/node-agent", "@ENV_FILE@", "/etc/gpuaas/node-agent.env", "@WRITABLE@", "").Replace(string(raw))
	require.NotContains(t, text, "@INSTALL")
	file := filepath.Join(t.TempDir(), filepath.Base(unit))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// program is a daemon with the example of its settings.
type program struct {
	example, reference string
	// main returns the exit code of the daemon with the flag --ready, which parses the settings and
	// starts nothing.
	main func(t *testing.T, getenv func(string) string, stderr io.Writer) int
}

func programs() map[string]program {
	return map[string]program{
		"api": {"api.env.example", "../../docs/reference/gpuaas-api.md", func(t *testing.T, getenv func(string) string, stderr io.Writer) int {
			t.Helper()
			return server.Main(t.Context(), []string{"--ready"}, getenv, io.Discard, stderr)
		}},
		"worker": {"worker.env.example", "../../docs/reference/gpuaas-worker.md", func(t *testing.T, getenv func(string) string, stderr io.Writer) int {
			t.Helper()
			return worker.Main(t.Context(), []string{"--ready"}, getenv, io.Discard, stderr)
		}},
	}
}

// settings reads an example as systemd does, with the lines that are commented out, and with its
// files below a folder.
func settings(t *testing.T, file, folder string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	vars := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		name, value, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "#"), "=")
		if !found || !regexp.MustCompile(`^[A-Z_]+$`).MatchString(name) {
			require.True(t, line == "\n" || strings.HasPrefix(line, "# "), "neither a comment nor a setting: %s", line)
			continue
		}
		require.NotRegexp(t, `[\s"'\\#]`, value, "%s needs quotes", name)
		vars[name] = strings.ReplaceAll(value, "/etc/gpuaas/", folder+"/")
	}
	return vars
}

// TestExamples: the programs accept their examples, and each variable is one of the program.
func TestExamples(t *testing.T) {
	t.Parallel()
	for name, p := range programs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			vars := settings(t, p.example, folder)
			reference, err := os.ReadFile(p.reference)
			require.NoError(t, err)
			for variable, value := range vars {
				assert.Contains(t, string(reference), "`"+variable+"`")
				if strings.HasPrefix(value, folder) {
					require.NoError(t, os.MkdirAll(filepath.Dir(value), 0o700))
					require.NoError(t, os.WriteFile(value, []byte("postgres://login:secret@127.0.0.1:5432/gpuaas?sslmode=disable\n"), 0o600))
				}
			}
			vars["GPUAAS_METRICS_ADDR"] = "127.0.0.1:1" // nothing serves there
			var stderr strings.Builder
			require.Equal(t, schema.ExitFailed, p.main(t, func(key string) string { return vars[key] }, &stderr), stderr.String())

			delete(vars, "GPUAAS_ENV")
			require.Equal(t, schema.ExitUsage, p.main(t, func(key string) string { return vars[key] }, &stderr))
			require.Contains(t, stderr.String(), "GPUAAS_ENV")
		})
	}
}

// TestUnitsAndExamples: a unit reads the file that its example describes, and a faulty configuration
// is not restarted.
func TestUnitsAndExamples(t *testing.T) {
	t.Parallel()
	for name, p := range programs() {
		raw, err := os.ReadFile("gpuaas-" + name + ".service")
		require.NoError(t, err)
		unit := string(raw)
		for _, line := range []string{
			"EnvironmentFile=/etc/gpuaas/" + name + ".env", "ExecStart=/usr/bin/gpuaas-" + name, "User=gpuaas-" + name,
			"Type=notify", "RestartPreventExitStatus=2",
		} {
			assert.Contains(t, unit, "\n"+line+"\n")
		}
		example, err := os.ReadFile(p.example)
		require.NoError(t, err)
		assert.Contains(t, string(example), "/etc/gpuaas/"+name+".env")
	}
	assert.Equal(t, 2, schema.ExitUsage, "RestartPreventExitStatus= of the units")
}
