package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// docker is a Docker daemon of the test.
type docker struct {
	t              *testing.T
	client, socket string
}

// newDocker starts a daemon until the end of the test.
func newDocker(t *testing.T) docker {
	t.Helper()
	need.Root(t, "dockerd")
	daemon := need.Program(t, "dockerd", "run: sh tools/need.sh host")
	d := docker{t: t, client: need.Program(t, "docker", "run: sh tools/need.sh host")}
	folder, err := os.MkdirTemp("", "docker") //nolint:usetesting // a short path, for the socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	d.socket = "unix://" + filepath.Join(folder, "s")
	log := &harness.Buffer{}
	cmd := exec.Command(daemon, "--data-root", folder+"/data", "--exec-root", folder+"/exec", "--pidfile", folder+"/pid", "-H", d.socket,
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--log-level=error")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("dockerd: " + log.String())
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // the exit code does not matter
		for _, mount := range []string{"/data", "/exec/netns/default"} {
			_ = syscall.Unmount(folder+mount, syscall.MNT_DETACH) // there may be none
		}
	})
	harness.Poll(t, func() bool { return d.command("info").Run() == nil }, time.Minute, 100*time.Millisecond, "dockerd answers")
	return d
}

// command prepares a command of Docker's client.
func (d docker) command(args ...string) *exec.Cmd {
	return exec.Command(d.client, append([]string{"-H", d.socket}, args...)...)
}

// do runs a command of Docker's client, which must succeed, and returns its output.
func (d docker) do(args ...string) string {
	d.t.Helper()
	out, err := d.command(args...).CombinedOutput()
	require.NoError(d.t, err, "docker %s: %s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// load loads an image file and returns the name of the image.
func (d docker) load(file string) string {
	d.t.Helper()
	out := d.do("load", "--input", file)
	_, name, ok := strings.Cut(out, "Loaded image: ")
	require.True(d.t, ok, out)
	return name
}

// confined are the options of a container as in deploy/compose: it cannot write to its file system,
// has no capability, and gets none.
func confined(more ...string) []string {
	return append([]string{"--network", "host", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}, more...)
}

// start starts a container, which is removed at the end of the test.
func (d docker) start(name, image string, options ...string) {
	d.t.Helper()
	d.do(append(append([]string{"run", "--detach", "--name", name}, confined(options...)...), image)...)
	d.t.Cleanup(func() {
		if d.t.Failed() {
			out, _ := d.command("logs", "--tail", "40", name).CombinedOutput()
			d.t.Logf("%s:\n%s", name, out)
		}
		d.do("rm", "--force", "--volumes", name)
	})
}

// inspect returns a field of a container.
func (d docker) inspect(name, field string) string {
	d.t.Helper()
	return d.do("inspect", "--format", "{{"+field+"}}", name)
}
