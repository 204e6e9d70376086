package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

func testStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{layout: layout{dir: t.TempDir()}, record: testRecord(t), messages: t.Output(), programs: programs{messages: t.Output()}}
	require.NoError(t, s.layout.make())
	return s
}

func testBundle(node string) trust.BootstrapBundle {
	return trust.BootstrapBundle{
		NodeID: node, EnrollmentToken: "tok", APIURL: "https://localhost:17004", Env: "dev",
		CABundlePath: trust.DefaultCABundlePath, CertPath: trust.DefaultCertPath, KeyPath: trust.DefaultKeyPath,
		NodeCertCABundlePath: trust.DefaultNodeCABundlePath, CABundlePEM: "ca", NodeCertCABundlePEM: "node-ca",
	}
}

func TestAgentFolder(t *testing.T) {
	t.Parallel()
	s := testStack(t)
	a := agents{s}.folder("gpu-17")
	require.NoError(t, a.write(testBundle("n1")))
	env, err := os.ReadFile(a.envFile())
	require.NoError(t, err)
	require.NotContains(t, string(env), "/etc/gpuaas", "every path is inside the folder")
	for _, line := range []string{
		`GPUAAS_NODE_ID="n1"`, `GPUAAS_ENROLLMENT_TOKEN="tok"`, `GPUAAS_WORKLOAD_DRIVER="process"`,
		`GPUAAS_KEY_PATH="` + a.dir + `/key.pem"`, `GPUAAS_STATE_DIR="` + a.dir + `/state"`,
	} {
		require.Contains(t, string(env), line+"\n")
	}
	require.NoError(t, filepath.WalkDir(a.dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
		return nil
	}))

	require.NoError(t, os.WriteFile(a.cert(), []byte("cert"), 0o600))
	require.NoError(t, a.write(testBundle("n1")))
	require.True(t, a.enrolled(), "a new bundle for the same node keeps its identity")
	require.NoError(t, a.write(testBundle("n2")))
	require.False(t, a.enrolled(), "another node starts without one")
}

func TestAgentParts(t *testing.T) {
	t.Parallel()
	s := testStack(t)
	for _, name := range []string{"gpu-1", "gpu-2", "gpu-3"} {
		a := agents{s}.folder(name)
		require.NoError(t, a.write(testBundle(name)))
		if name != "gpu-1" {
			require.NoError(t, os.WriteFile(a.cert(), []byte("cert"), 0o600))
		}
	}
	last := `{"level":"INFO","msg":"agent starts"}` + "\n" + `{"level":"ERROR","msg":"node removed: the server refuses this node"}` + "\n"
	require.NoError(t, os.WriteFile(agents{s}.folder("gpu-3").log, []byte(last), 0o600))
	parts, err := agents{s}.parts()
	require.NoError(t, err)
	require.Len(t, parts, 1, "gpu-1 is not enrolled, gpu-3 was removed")
	require.Equal(t, "agent/gpu-2", parts[0].name)

	s.record.Ports.Node = 18004
	require.NoError(t, agents{s}.updateAPIURLs())
	env, err := os.ReadFile(agents{s}.folder("gpu-2").envFile())
	require.NoError(t, err)
	require.Contains(t, string(env), "GPUAAS_API_URL=\"https://localhost:18004\"\n")
	require.Equal(t, "gpu-2", agents{s}.folder("gpu-2").nodeID())
}

func TestDownStopsAgentWorkloads(t *testing.T) {
	t.Parallel()
	s := testStack(t)
	a := agents{s}.folder("gpu-17")
	require.NoError(t, a.write(testBundle("n1")))
	id, ended := sleeper(t)
	other, otherEnded := sleeper(t)
	for name, w := range map[string]workload{
		"job":    {Phase: "running", PID: id.PID, StartTime: id.StartTime, BootID: id.BootID},
		"reused": {Phase: "running", PID: other.PID, StartTime: "1", BootID: other.BootID},
		"ended":  {Phase: "ended", PID: other.PID, StartTime: other.StartTime, BootID: other.BootID},
	} {
		raw, err := json.Marshal(w)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(a.workloads(), name+".state"), raw, 0o600))
	}
	require.NoError(t, s.stopAll(t.Context()))
	<-ended
	select {
	case <-otherEnded:
		t.Fatal("stopped a process that is not a workload")
	default:
	}
}

func TestFailedStartStopsProcess(t *testing.T) {
	s := testStack(t)
	shell := func(timeout time.Duration, script string) part {
		return part{
			name: partWorker, healthy: dialable("127.0.0.1:1"), startTimeout: timeout,
			stopSteps: []stopStep{{syscall.SIGKILL, harness.Timeout}},
			prepare: func(context.Context) (command, error) {
				return command{path: "/bin/sh", args: []string{"-c", script}}, nil
			},
		}
	}
	t.Run("exits", func(t *testing.T) {
		started, err := shell(harness.Timeout, "echo no database; exit 3").ensure(t.Context(), s.layout)
		require.True(t, started)
		require.ErrorContains(t, err, "exited before it was ready")
		require.ErrorContains(t, err, "no database", "the error contains the end of the log")
	})
	t.Run("never ready", func(t *testing.T) {
		_, err := shell(300*time.Millisecond, "echo $$; exec sleep 3600").ensure(t.Context(), s.layout)
		require.ErrorContains(t, err, "not ready after 300ms")
		require.Contains(t, schema.AsError(err).Next, "worker.log")
	})
	runs, err := s.layout.processes().all()
	require.NoError(t, err)
	require.Empty(t, runs)
}

// TestAgentOfReissuedNode: an agent that lost its certificate starts with the token in its env
// file if its node needs no enrollment.
func TestAgentOfReissuedNode(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, token string, code int) (agentFolder, error) {
		t.Helper()
		s, bin := testStack(t), t.TempDir()
		said := &strings.Builder{}
		s.messages, s.programs.executable = said, filepath.Join(bin, "gpuaas")
		for name, script := range map[string]string{
			"gpuaas":    fmt.Sprintf("#!/bin/sh\necho 'cannot enroll' >&2\nexit %d\n", code),
			agentBinary: "#!/bin/sh\ngrep TOKEN \"$GPUAAS_NODE_AGENT_ENV_FILE\" >new\nmv new cert.pem\nexec sleep 3600\n",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
		}
		a := agents{s}.folder("gpu-17")
		b := testBundle("n1")
		b.EnrollmentToken = token
		require.NoError(t, a.write(b))
		err := agents{s}.start(t.Context(), a, "")
		t.Cleanup(func() { require.NoError(t, s.stopAll(context.WithoutCancel(t.Context()))) })
		require.Contains(t, said.String(), "cannot enroll")
		if err == nil {
			require.Contains(t, said.String(), "agent/gpu-17 starts with the token in "+a.envFile())
		}
		return a, err
	}
	a, err := start(t, "of-the-reissue", schema.ExitRefused)
	require.NoError(t, err)
	cert, err := os.ReadFile(a.cert())
	require.NoError(t, err)
	require.Equal(t, "GPUAAS_ENROLLMENT_TOKEN=\"of-the-reissue\"\n", string(cert))
	for token, code := range map[string]int{"": schema.ExitRefused, "of-the-reissue": schema.ExitUnreachable} {
		var ended *EndedError
		_, err := start(t, token, code)
		require.ErrorAs(t, err, &ended)
		require.Equal(t, code, ended.Code)
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"dev", "up", "x"}, {"dev", "agent"}, {"dev", "agent", "a", "b"}, {"dev", "agent", "../a"}, {"dev", "down", "x"},
		{"dev", "fleet"}, {"dev", "fleet", "1", "2"},
		{"dev", "env", "a", "b"},
	} {
		root := &cobra.Command{Use: "gpuaas", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(NewCommand(io.Discard, io.Discard, nil))
		root.SetArgs(args)
		var usage *UsageError
		require.ErrorAs(t, root.ExecuteContext(t.Context()), &usage, strings.Join(args, " "))
		require.Contains(t, usage.Command, "gpuaas dev")
	}
}

func TestNoStack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	run := func(args ...string) error {
		root := &cobra.Command{Use: "gpuaas", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(NewCommand(io.Discard, io.Discard, nil))
		root.SetArgs(append([]string{"dev", "--dir", dir}, args...))
		return root.ExecuteContext(t.Context())
	}
	for _, args := range [][]string{{"status"}, {"env"}, {"agent", "gpu-17"}, {"fleet", "3"}} {
		err := run(args...)
		require.ErrorContains(t, err, "there is no stack", args[0])
		require.Contains(t, schema.AsError(err).Next, "gpuaas dev up")
	}
	require.NoError(t, run("down"))
	require.NoError(t, run("down", "--wipe"))
	require.NoDirExists(t, dir)
}
