package workload

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestDockerRestoresPolicies: an uncordon restores exactly the policies that drains removed,
// and a second one changes nothing.
func TestDockerRestoresPolicies(t *testing.T) {
	t.Parallel()
	retries := restartPolicy{Name: "on-failure", MaximumRetryCount: 5}
	f := newFakeDocker(t,
		&fakeContainer{id: "a1", name: "once", policy: restartPolicy{Name: "no"}},
		&fakeContainer{id: "b1", name: "always", policy: always()},
		&fakeContainer{id: "c1", name: "retries", policy: retries},
		&fakeContainer{id: "d1", name: "temporary", autoRemove: true},
		&fakeContainer{id: "e1", name: "removed", policy: always()},
		&fakeContainer{id: "f1", name: "changed", policy: always()},
	)
	folder := t.TempDir()
	d := dockerAt(t, f.socket, folder)
	for _, w := range listed(t, d) {
		require.NoError(t, d.Stop(t.Context(), w.Name))
	}
	require.Empty(t, listed(t, d))
	f.change("removed", func(c *fakeContainer) { c.id = "another" })
	f.change("changed", func(c *fakeContainer) { c.policy = restartPolicy{Name: "unless-stopped"} })

	d = dockerAt(t, f.socket, folder) // a drained node restarts
	require.NoError(t, d.Restore(t.Context()))
	require.Equal(t, "no", f.get("once").policy.Name)
	require.Equal(t, always(), f.get("always").policy)
	require.Equal(t, retries, f.get("retries").policy)
	require.Equal(t, "no", f.get("removed").policy.Name, "another container of the same name")
	require.Equal(t, "unless-stopped", f.get("changed").policy.Name, "an operator's policy")
	require.False(t, f.get("always").running, "no container is started")

	f.change("always", func(c *fakeContainer) { c.policy = restartPolicy{Name: "no"} })
	require.NoError(t, dockerAt(t, f.socket, folder).Restore(t.Context()))
	require.Equal(t, "no", f.get("always").policy.Name, "the record is cleared")
}

// TestDockerCrashAroundUpdate: the policy survives an agent that is killed after it recorded
// the policy and before, or after, the daemon removed it.
func TestDockerCrashAroundUpdate(t *testing.T) {
	t.Parallel()
	for name, applied := range map[string]bool{"before the update": false, "after the update": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, drains := range []bool{true, false} {
				f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
				folder := t.TempDir()
				ctx, crash := context.WithCancel(t.Context())
				f.intercept(func(_, path string) int {
					if !strings.HasSuffix(path, "/update") {
						return 0
					}
					if applied {
						f.change("a", func(c *fakeContainer) { c.policy = restartPolicy{Name: "no"} })
					}
					crash()
					return http.StatusInternalServerError
				})
				require.Error(t, dockerAt(t, f.socket, folder).Stop(ctx, "a"))
				f.intercept(nil)
				require.Empty(t, f.seen(), "no signal before the policy is removed")

				d := dockerAt(t, f.socket, folder)
				if drains {
					require.NoError(t, d.Stop(t.Context(), "a"))
					require.Equal(t, fakeContainer{id: "a1", name: "a", label: DefaultLabel, policy: restartPolicy{Name: "no"}, starts: 1}, f.get("a"))
				}
				require.NoError(t, d.Restore(t.Context()))
				require.Equal(t, always(), f.get("a").policy)
				require.Empty(t, d.policies.all())
			}
		})
	}
}

// stopVar makes the test binary stop container a: the socket of the daemon, a colon, and the
// folder of the records.
const stopVar = "GPUAAS_TEST_STOP"

// TestStopProcess is the process that TestDockerKilledAgent kills.
func TestStopProcess(t *testing.T) {
	t.Parallel()
	if socket, folder, ok := strings.Cut(os.Getenv(stopVar), ":"); ok {
		require.NoError(t, dockerAt(t, socket, folder).Stop(t.Context(), "a"))
	}
}

// TestDockerKilledAgent kills the process with SIGKILL at each request that changes the
// container. The next process restores the policy, and the container gets one signal at most.
func TestDockerKilledAgent(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"/update", "/kill"} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
			folder := t.TempDir()
			self, err := os.Executable()
			require.NoError(t, err)
			agent := exec.Command(self, "-test.run=^TestStopProcess$")
			agent.Env = append(os.Environ(), stopVar+"="+f.socket+":"+folder)
			killed, started := make(chan error, 1), make(chan struct{})
			f.intercept(func(_, path string) int {
				if strings.HasSuffix(path, request) {
					<-started
					killed <- agent.Process.Kill()
					return http.StatusInternalServerError
				}
				return 0
			})
			require.NoError(t, agent.Start())
			close(started)
			require.Error(t, agent.Wait())
			require.NoError(t, <-killed)
			f.intercept(nil)
			signals := func() int { return strings.Count(strings.Join(f.seen(), "\n"), "/kill") }
			require.Zero(t, signals())

			d := dockerAt(t, f.socket, folder)
			require.Equal(t, request == "/kill", listed(t, d)[0].Stopping)
			require.NoError(t, d.Stop(t.Context(), "a"))
			require.LessOrEqual(t, signals(), 1)
			require.Equal(t, "no", f.get("a").policy.Name)
			require.NoError(t, d.Restore(t.Context()))
			require.Equal(t, always(), f.get("a").policy)
		})
	}
}

// TestDockerRecordsBeforeUpdate: a policy that cannot be recorded is not removed, and the
// container receives no signal.
func TestDockerRecordsBeforeUpdate(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
	folder := t.TempDir()
	d := dockerAt(t, f.socket, folder)
	require.NoError(t, os.Mkdir(filepath.Join(folder, "docker-policies.json"), 0o700))
	require.Error(t, d.Stop(t.Context(), "a"))
	require.Error(t, d.Kill(t.Context(), "a"))
	require.Empty(t, f.seen())
}

// TestDockerRestoresLater: a policy that could not be restored, because the daemon did not answer,
// is restored by Run once the node is not cordoned.
func TestDockerRestoresLater(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
	d := dockerAt(t, f.socket, t.TempDir())
	require.NoError(t, d.Stop(t.Context(), "a"))
	f.intercept(func(string, string) int { return http.StatusServiceUnavailable })
	require.ErrorContains(t, d.Restore(t.Context()), "503: intercepted")
	f.intercept(nil)

	require.NoError(t, d.retryRestore(t.Context()))
	require.Equal(t, "no", f.get("a").policy.Name, "the node is cordoned")
	d.cordoned = func() bool { return false }
	ctx, cancel := context.WithCancel(t.Context())
	d.changed = cancel // after the first list
	f.change("a", func(c *fakeContainer) { c.running = true })
	d.Run(ctx)
	require.Equal(t, always(), f.get("a").policy)
}

// TestCanceledDrainRestores: a drain that the control plane cancels restores the policies of
// the containers that it found, and no others.
func TestCanceledDrainRestores(t *testing.T) {
	t.Parallel()
	f := newFakeDocker(t,
		&fakeContainer{id: "a1", name: "earlier", policy: always()},
		&fakeContainer{id: "b1", name: "stubborn", policy: always(), ignores: true},
	)
	d := dockerAt(t, f.socket, t.TempDir())
	require.NoError(t, d.Stop(t.Context(), "earlier")) // by a drain that ended
	ctx, cancel := context.WithCancelCause(t.Context())
	f.intercept(func(_, path string) int {
		if strings.HasSuffix(path, "b1/kill") {
			cancel(execution.ErrCanceled)
		}
		return 0
	})
	_, err := Drain{Workloads: d, Now: time.Now}.Run(ctx, drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(time.Hour)}))
	require.Error(t, err)
	require.Equal(t, always(), f.get("stubborn").policy)
	require.Equal(t, "no", f.get("earlier").policy.Name)
	require.False(t, listed(t, d)[0].Stopping, "the next drain repeats the request")
}

// TestUncordonRestores: the task that uncordons restores the policies, and succeeds without
// the daemon; its output says so.
func TestUncordonRestores(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"": false, "without the daemon": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
			folder := t.TempDir()
			d := dockerAt(t, f.socket, folder)
			require.NoError(t, d.Stop(t.Context(), "a"))
			if away {
				f.intercept(func(string, string) int { return http.StatusServiceUnavailable })
			}
			flag, err := LoadCordon(disk.At(folder), func() {})
			require.NoError(t, err)
			require.NoError(t, flag.Set(true))
			var output bytes.Buffer
			x := drainTask(&bytes.Buffer{}, task.DrainParams{})
			x.Output = &output
			_, err = Cordon{flag, NewMonitor(d, time.Now, func() {}, slog.New(slog.DiscardHandler))}.Set(false)(t.Context(), x)
			require.NoError(t, err)
			require.False(t, flag.Cordoned())
			require.Equal(t, away, f.get("a").policy.Name == "no")
			require.Equal(t, away, strings.Contains(output.String(), "could not restore"), output.String())
		})
	}
}

// TestUncordonKeepsTheCordon: the uncordon of a canceled drain restores the policies on a node that
// stays cordoned.
func TestUncordonKeepsTheCordon(t *testing.T) {
	t.Parallel()
	for _, cordoned := range []bool{true, false} {
		f := newFakeDocker(t, &fakeContainer{id: "a1", name: "a", policy: always()})
		folder := t.TempDir()
		d := dockerAt(t, f.socket, folder)
		require.NoError(t, d.Stop(t.Context(), "a"))
		flag, err := LoadCordon(disk.At(folder), func() {})
		require.NoError(t, err)
		require.NoError(t, flag.Set(cordoned))
		x := drainTask(&bytes.Buffer{}, task.DrainParams{})
		x.Params = task.UncordonParams{KeepCordon: true}.Encode()
		out, err := Cordon{flag, NewMonitor(d, time.Now, func() {}, slog.New(slog.DiscardHandler))}.Uncordon(t.Context(), x)
		require.NoError(t, err)
		require.Equal(t, task.CordonResult{Cordoned: cordoned, Was: cordoned, Workloads: []task.Workload{}}, out)
		require.Equal(t, cordoned, flag.Cordoned())
		require.Equal(t, always(), f.get("a").policy)
	}
	for _, bad := range []string{`{"keep_cordon":1}`, `{"force":true}`, `[]`, `{"keep_cordon":true} {}`} {
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(CheckUncordon([]byte(bad))), bad)
	}
	for _, good := range []string{"", "null", "{}", `{"keep_cordon":true}`} {
		require.NoError(t, CheckUncordon([]byte(good)))
	}
}
