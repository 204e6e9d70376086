package workload

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// containerVar makes the test binary the process of a container: the signal that ends it,
// or "none".
const containerVar = "GPUAAS_TEST_CONTAINER"

// containerReady is what the process of a container prints once it handles signals.
const containerReady = "ready for signals"

// TestContainerProcess is the process of a container of the other tests.
func TestContainerProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(containerVar) == "" {
		return
	}
	ended := make(chan os.Signal, 8)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println(containerReady)
	for s := range ended {
		if s.String() == os.Getenv(containerVar) {
			return
		}
	}
}

// realDocker is a Docker daemon of a test.
type realDocker struct {
	t      *testing.T
	socket string
	args   []string
	daemon *exec.Cmd
}

// newRealDocker starts a daemon with an image "work" that contains the test binary. A test
// needs dockerd and root.
func newRealDocker(t *testing.T) *realDocker {
	t.Helper()
	program := need.Program(t, "dockerd", "run: sh tools/need.sh host")
	need.Root(t, "dockerd")
	self, err := elf.Open("/proc/self/exe")
	require.NoError(t, err)
	dynamic := slices.ContainsFunc(self.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	need.That(t, !dynamic, "the test binary, which containers run, is not static: set CGO_ENABLED=0")
	folder := t.TempDir()
	r := &realDocker{t: t, socket: filepath.Join(folder, "d.sock")}
	r.args = []string{program, "--data-root", folder + "/data", "--exec-root", folder + "/exec", "--pidfile", folder + "/pid", "-H", "unix://" + r.socket,
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--live-restore", "--log-level=error"}
	r.start()
	t.Cleanup(r.end)
	r.importImage()
	return r
}

// start starts the daemon and waits until it answers.
func (r *realDocker) start() {
	r.t.Helper()
	log, err := os.CreateTemp(r.t.TempDir(), "dockerd")
	require.NoError(r.t, err)
	r.daemon = exec.Command(r.args[0], r.args[1:]...)
	r.daemon.Stdout, r.daemon.Stderr = log, log
	r.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(r.t, r.daemon.Start())
	require.NoError(r.t, log.Close())
	require.Eventually(r.t, func() bool {
		_, err := newDockerAPI(r.socket).connect(context.WithoutCancel(r.t.Context()))
		return err == nil
	}, time.Minute, 50*time.Millisecond, "dockerd answers; its log is "+log.Name())
}

// stop stops the daemon; its containers keep running.
func (r *realDocker) stop() {
	require.NoError(r.t, r.daemon.Process.Signal(syscall.SIGTERM))
	_ = r.daemon.Wait() // the exit code does not matter
}

// end removes the containers, stops the daemon, and removes the mount that it leaves.
func (r *realDocker) end() {
	var list []container
	_ = json.Unmarshal(r.call(http.MethodGet, "/containers/json?all=1", nil), &list) // best effort
	for _, c := range list {
		r.call(http.MethodDelete, "/containers/"+c.ID+"?force=1", nil)
	}
	r.stop()
	_ = syscall.Unmount(filepath.Join(filepath.Dir(r.socket), "data"), syscall.MNT_DETACH) // there may be none
}

// call sends a request that must succeed.
func (r *realDocker) call(method, path string, body io.Reader) []byte {
	r.t.Helper()
	q, err := http.NewRequestWithContext(context.WithoutCancel(r.t.Context()), method, "http://docker"+path, body)
	require.NoError(r.t, err)
	q.Header.Set("Content-Type", "application/json")
	a, err := newDockerAPI(r.socket).http.Do(q)
	require.NoError(r.t, err)
	defer a.Body.Close()
	out, err := io.ReadAll(a.Body)
	require.NoError(r.t, err)
	require.Equal(r.t, 2, a.StatusCode/100, "%s %s: %s", method, path, out)
	return out
}

// importImage makes the image: the test binary alone, which is static.
func (r *realDocker) importImage() {
	r.t.Helper()
	binary, err := os.ReadFile("/proc/self/exe")
	require.NoError(r.t, err)
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	require.NoError(r.t, w.WriteHeader(&tar.Header{Name: "app", Mode: 0o755, Size: int64(len(binary))}))
	_, err = w.Write(binary)
	require.NoError(r.t, err)
	require.NoError(r.t, w.Close())
	r.call(http.MethodPost, "/images/create?fromSrc=-&repo=work&tag=1", &image)
}

// run starts a container that the signal ends, if it is not none.
func (r *realDocker) run(name, ends, stopSignal, restart string, labels ...string) {
	r.t.Helper()
	all := map[string]string{}
	for _, l := range labels {
		all[l] = "1"
	}
	body, err := json.Marshal(map[string]any{
		"Image": "work:1", "Cmd": []string{"/app", "-test.run=^TestContainerProcess$"}, "Env": []string{containerVar + "=" + ends},
		"Labels": all, "StopSignal": stopSignal,
		"HostConfig": map[string]any{"NetworkMode": "none", "RestartPolicy": map[string]any{"Name": restart}},
	})
	require.NoError(r.t, err)
	r.call(http.MethodPost, "/containers/create?name="+url.QueryEscape(name), bytes.NewReader(body))
	r.call(http.MethodPost, "/containers/"+name+"/start", nil)
	require.Eventually(r.t, func() bool {
		return bytes.Contains(r.call(http.MethodGet, "/containers/"+name+"/logs?stdout=1", nil), []byte(containerReady))
	}, time.Minute, 20*time.Millisecond, "the process of %s handles signals", name)
}

// describe returns a container with its number of restarts.
func (r *realDocker) describe(name string) (c struct {
	container
	RestartCount int
},
) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal(r.call(http.MethodGet, "/containers/"+name+"/json", nil), &c))
	return c
}

// TestRealDocker drains a real Docker daemon. Containers with a restart policy end and are
// not started again, also not by a daemon that restarts meanwhile; a container without the
// label stays; and an uncordon restores the policies.
func TestRealDocker(t *testing.T) {
	t.Parallel()
	r := newRealDocker(t)
	r.run("always", syscall.SIGTERM.String(), "", "always", DefaultLabel)
	r.run("image-signal", syscall.SIGINT.String(), "SIGINT", "unless-stopped", DefaultLabel)
	r.run("stubborn", "none", "", "always", DefaultLabel)
	r.run("exporter", syscall.SIGTERM.String(), "", "always")
	folder := t.TempDir()
	driver := func() *dockerDriver { return dockerAt(t, r.socket, folder) }
	require.ElementsMatch(t, []string{"always", "image-signal", "stubborn"}, names(listed(t, driver())))
	drain := func(force bool, within time.Duration) task.DrainResult {
		out, err := Drain{Workloads: driver(), Now: time.Now}.Run(t.Context(),
			drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(within), Force: force}))
		require.NoError(t, err)
		result, ok := out.(task.DrainResult)
		require.True(t, ok)
		return result
	}
	result := drain(false, 5*time.Second)
	require.Equal(t, []string{"always", "image-signal"}, result.Stopped, "%+v", result)
	require.Len(t, result.Blocked, 1)
	require.Equal(t, "stubborn", result.Blocked[0].Workload)

	r.stop()
	_, err := driver().List(t.Context())
	require.ErrorContains(t, err, "cannot reach the Docker daemon")
	r.start()
	require.Equal(t, []string{"stubborn"}, names(listed(t, driver())), "the daemon started no other container")
	require.Equal(t, task.DrainResult{Stopped: []string{"stubborn"}}, drain(true, 0))
	require.Empty(t, listed(t, driver()))
	require.True(t, r.describe("exporter").State.Running)

	require.NoError(t, driver().Restore(t.Context()))
	for name, policy := range map[string]string{"always": "always", "image-signal": "unless-stopped", "stubborn": "always", "exporter": "always"} {
		c := r.describe(name)
		require.Equal(t, restartPolicy{Name: policy}, c.HostConfig.RestartPolicy, name)
		require.Zero(t, c.RestartCount, name)
	}
	require.Empty(t, listed(t, driver()), "no container was started")
}

// TestRealDockerVersions: a daemon refuses a later version of the API than its own, and the
// driver asks in none.
func TestRealDockerVersions(t *testing.T) {
	t.Parallel()
	r := newRealDocker(t)
	api, err := newDockerAPI(r.socket).connect(t.Context())
	require.NoError(t, err)
	var minor int
	_, err = fmt.Sscanf(api.prefix, "/v1.%d", &minor)
	require.NoError(t, err)
	require.NotZero(t, minor)
	_, err = api.labeled(t.Context(), "none")
	require.NoError(t, err)
	later := dockerAPI{http: api.http, prefix: "/v1.999"}
	_, err = later.labeled(t.Context(), "none")
	require.ErrorContains(t, err, "too new")
}
