package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// exposure is ten times the highest score of `systemd-analyze security` that a unit may
// have.
const exposure = "30"

// TestExposure: systemd rates each unit as well protected.
func TestExposure(t *testing.T) {
	t.Parallel()
	analyze := need.Program(t, "systemd-analyze", "install systemd 252 or later")
	for _, unit := range []string{"gpuaas-api.service", "gpuaas-worker.service", "../package/gpuaas-node-agent.service"} {
		t.Run(filepath.Base(unit), func(t *testing.T) {
			t.Parallel()
			file := rendered(t, unit)
			out, err := exec.Command(analyze, "security", "--offline=true", "--threshold="+exposure, file).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "Overall exposure level")
			out, err = exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
			require.NotContains(t, string(out), "Unknown key name", "%v", err)
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
