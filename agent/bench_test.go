package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/test/agenttest"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// BenchmarkIdleAgent reports what the shipped agent weighs: the size of its
// stripped static binary and the memory of an enrolled agent that waits for
// work. The limits of the project are 15 MiB and 25 MiB.
func BenchmarkIdleAgent(b *testing.B) {
	need.That(b, runtime.GOOS == "linux", "resident memory is read from /proc")
	bin := filepath.Join(b.TempDir(), "gpuaas-node-agent")
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, "../cmd/gpuaas-node-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(b, err, string(out))
	fi, err := os.Stat(bin)
	require.NoError(b, err)

	f := agenttest.New(b)
	cmd := exec.CommandContext(b.Context(), bin, "run")
	cmd.Env = environ(configFor(f))
	require.NoError(b, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	f.Polls()
	for b.Loop() {
		require.NoError(b, wait.Sleep(b.Context(), 3*time.Second)) // until it is idle
	}
	resident := resident(b, cmd.Process.Pid)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(fi.Size())/(1<<20), "binary-MiB")
	b.ReportMetric(resident, "idle-RSS-MiB")
	require.Less(b, float64(fi.Size())/(1<<20), 15.0)
	require.Less(b, resident, 25.0)
}

func resident(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	require.NoError(b, err)
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
			require.NoError(b, err)
			return kib / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
