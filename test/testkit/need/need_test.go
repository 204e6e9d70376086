package need_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// child makes TestChild the process of a test that lacks a program.
const child = "GPUAAS_TEST_NEED"

// TestChild lacks a program if TestMissingProgram runs it.
func TestChild(t *testing.T) {
	t.Parallel()
	need.Program(t, "sh", "install a shell")
	if os.Getenv(child) != "" {
		need.Program(t, "no-such-program", "install it from nowhere")
		t.Log("the test continued")
	}
}

// TestMissingProgram: a test without its program skips, and fails in CI. Both say how to get it.
func TestMissingProgram(t *testing.T) {
	t.Parallel()
	for ci, result := range map[string]string{"": "--- SKIP", "false": "--- SKIP", "true": "--- FAIL"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1", "CI="+ci)
		out, err := cmd.CombinedOutput()
		require.Equal(t, ci == "true", err != nil, "%s: %s", ci, out)
		require.Contains(t, string(out), result)
		require.Contains(t, string(out), "there is no no-such-program; install it from nowhere")
		require.NotContains(t, string(out), "continued")
	}
}
