package e2e

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// nextBuild is the version of the worker that the test upgrades to.
const nextBuild = "v99.0.0-upgrade-test"

// TestUpgrade upgrades the worker to another build while one drain runs and one is
// parked, and rolls it back. Every operation completes on the build that is current at
// that time.
func TestUpgrade(t *testing.T) {
	running := drainThatWaits(t, "upgrade-running")
	parked, parkedID := enrolled(t, "upgrade-parked")
	startWorkload(t, parked, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	ok(t, "node", "drain", parked, "--yes", "--deadline", "1s", "--no-wait")
	waitParked(t, parkedID, "drain_blocked")
	before := currentBuild(t)
	require.NotEqual(t, temporal.Unversioned, before, "the stack's worker has no version")

	ok(t, "admin", "replay", "--all-open")
	next := startNext(t)
	require.Contains(t, next.log.String(), `"msg":"standby`)
	require.Equal(t, before, currentBuild(t), "a version that starts takes no work")
	refused := run(t, "admin", "promote", "--to", "v98")
	require.Equal(t, schema.ExitRefused, refused.code)
	require.Contains(t, refused.stderr, nextBuild)

	ok(t, "admin", "promote", "--to", nextBuild)
	require.NoError(t, syscall.Kill(parts(t)["worker"].PID, syscall.SIGTERM))
	eventually(t, "the old worker ended", func() bool { return !parts(t)["worker"].Healthy })
	ok(t, "op", "force", parked, "--reason", "the owner agreed", "--yes")
	eventually(t, "drained", func() bool { return show(t, parked).State == lifecycle.NodeDrained })
	running.finish(t)
	for host, id := range map[string]string{running.host: running.id, parked: parkedID} {
		builds := completedBy(t, host, id)
		require.Equal(t, before, builds[0], "%s started before the upgrade", host)
		require.Equal(t, nextBuild, builds[len(builds)-1], "%s ended after the upgrade", host)
	}

	// The rollback: the stack's worker starts again and is promoted.
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	require.Equal(t, before, currentBuild(t))
	next.stop(t)
	act(t, "node", "reactivate", parked)
	require.Equal(t, before, completedBy(t, parked, parkedID)[0])
}

// currentBuild returns the version of the worker that receives work.
func currentBuild(t *testing.T) string {
	t.Helper()
	c, err := temporal.Dial(temporal.Config{Address: shared.Getenv("TEMPORAL_ADDRESS"), Namespace: shared.Getenv("TEMPORAL_NAMESPACE")})
	require.NoError(t, err)
	defer c.Close()
	r, err := c.Deployments.Routing(t.Context(), temporal.PollerFresh)
	require.NoError(t, err)
	return r.Current
}

// completedBy returns the versions that completed the workflow tasks of the node's
// newest run, in order.
func completedBy(t *testing.T, host, id string) (builds []string) {
	t.Helper()
	for _, e := range history(t, dial(t), lifecycle.NodeWorkflowID(host, id), "").GetEvents() {
		if done := e.GetWorkflowTaskCompletedEventAttributes(); done != nil {
			builds = append(builds, done.GetDeploymentVersion().GetBuildId())
		}
	}
	require.NotEmpty(t, builds)
	return builds
}

// nextWorker is a worker of the next build beside the stack's worker.
type nextWorker struct {
	cmd *exec.Cmd
	log *harness.Buffer
	// end is closed when the process has ended.
	end chan struct{}
}

// startNext builds a worker of the next version, and runs it with the environment of the
// stack's worker until it is ready.
func startNext(t *testing.T) *nextWorker {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "gpuaas-worker")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin,
		"-ldflags", "-s -w -X github.com/gpuaas/gpuaas/schema/version.version="+nextBuild, "../../cmd/gpuaas-worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	raw, err := os.ReadFile("/proc/" + strconv.Itoa(parts(t)["worker"].PID) + "/environ")
	require.NoError(t, err)
	metrics := harness.FreeAddress(t)
	w := &nextWorker{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), bin), log: &harness.Buffer{}, end: make(chan struct{})}
	for entry := range bytes.SplitSeq(raw, []byte{0}) {
		w.cmd.Env = append(w.cmd.Env, string(entry))
	}
	w.cmd.Env = append(w.cmd.Env, "GPUAAS_METRICS_ADDR="+metrics)
	w.cmd.Stderr = w.log
	require.NoError(t, w.cmd.Start())
	go func() {
		defer close(w.end)
		_ = w.cmd.Wait() // its exit code does not matter
	}()
	t.Cleanup(func() { w.stop(t) })
	eventually(t, "the next worker is ready", func() bool {
		answer, err := http.Get("http://" + metrics + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK && strings.Contains(w.log.String(), `"msg":"ready"`)
	})
	return w
}

// stop stops the worker and waits for its end.
func (w *nextWorker) stop(t *testing.T) {
	t.Helper()
	_ = w.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	harness.Receive(t, "the end of the next worker", w.end)
}
