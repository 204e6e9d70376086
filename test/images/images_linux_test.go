package images

import (
	"bytes"
	"flag"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// folder contains the image files.
var folder = flag.String("images", "../../dist/images", "folder with the image files of a release")

const (
	// budget bounds a wait for a process on a busy machine.
	budget = 5 * time.Minute
	every  = 250 * time.Millisecond
	// grace is stop_grace_period of deploy/compose, in seconds.
	grace = "30"
	// user is that of the images.
	user = "65532"
)

// The folders of containers, as in deploy/compose.
const (
	secretsFolder = "/run/secrets/"
	loginsFolder  = "/run/gpuaas"
)

// TestImages runs the control plane from the images of a release: the CLI prepares the servers, the API
// and the worker become ready, a node enrolls and drains, and both end in time. They run as an
// ordinary user whose root file system is read-only.
func TestImages(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a stack and containers")
	}
	d := newDocker(t)
	images := map[string]string{}
	for _, name := range []string{"api", "worker", "cli", "cluster-agent"} {
		found, err := filepath.Glob(filepath.Join(*folder, "gpuaas-"+name+"_*.oci.tar"))
		require.NoError(t, err)
		need.That(t, len(found) == 1, "there are %d images of %s in %s, not 1; run: ./task release:images-test", len(found), name, *folder)
		images[name] = d.load(found[0])
		out := d.do(append(append([]string{"run", "--rm"}, confined()...), images[name], "version")...)
		require.Contains(t, out, "gpuaas", name)
		t.Logf("%s: %s", images[name], strings.Split(out, "\n")[0])
	}
	c := newControl(t, d, images)
	c.setUp()
	c.startControlPlane()
	c.useNode()
	c.stop()
}

// control is a control plane in containers, in place of that of a development stack.
type control struct {
	t      *testing.T
	d      docker
	images map[string]string
	stack  *stack.Stack
	// secrets is a folder with copies of secrets that the user of the images can read.
	secrets string
	env     map[string]map[string]string // of the stack's own API and worker
}

// newControl starts a stack and stops its API and its worker.
func newControl(t *testing.T, d docker, images map[string]string) *control {
	t.Helper()
	bin, err := devserver.Find("gpuaas")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "gpuaas-images-") //nolint:usetesting // Postgres runs as another user, who cannot enter the test's folder
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	c := &control{t: t, d: d, images: images, secrets: t.TempDir(), env: map[string]map[string]string{}}
	require.NoError(t, os.Chmod(c.secrets, 0o700))
	c.stack, err = stack.Up(t.Context(), bin, filepath.Join(dir, "dev"))
	t.Cleanup(func() { require.NoError(t, c.stack.Down()) })
	require.NoError(t, err)
	parts, err := c.stack.Parts(t.Context())
	require.NoError(t, err)
	for _, name := range []string{"api", "worker"} {
		c.env[name] = environ(t, parts[name].PID)
		require.NoError(t, syscall.Kill(parts[name].PID, syscall.SIGTERM))
		harness.Poll(t, func() bool { return syscall.Kill(parts[name].PID, 0) != nil }, budget, every, name+" of the stack has ended")
	}
	return c
}

// environ is the configuration in the environment of a process.
func environ(t *testing.T, pid int) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	require.NoError(t, err)
	// The development stack sets these to folders of this machine, and has no load balancer.
	other := regexp.MustCompile(`^GPUAAS_(AGENT_.*|RELEASE_PUBKEYS|LIBVIRT_.*|LAME_DUCK)$`)
	env := map[string]string{}
	for entry := range bytes.SplitSeq(raw, []byte{0}) {
		name, value, _ := strings.Cut(string(entry), "=")
		if regexp.MustCompile(`^(GPUAAS|TEMPORAL|VAULT)_`).MatchString(name) && !other.MatchString(name) {
			env[name] = value
		}
	}
	return env
}

// options are the options of a container with these variables. It mounts the files that the variables
// name: those that gpuaas admin setup wrote from its volume, and others as Compose mounts secrets.
func (c *control) options(env map[string]string) (options []string) {
	c.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		if strings.HasSuffix(name, "_FILE") {
			file := filepath.Base(value)
			if strings.HasSuffix(file, "-role-id") || strings.HasSuffix(file, "-secret-id") {
				value = filepath.Join(loginsFolder, file)
			} else {
				value = secretsFolder + file
				options = append(options, "--volume", c.secret(env[name])+":"+value+":ro")
			}
		}
		options = append(options, "--env", name+"="+value)
	}
	return options
}

// secret copies a file for the user of the images. Only root can enter the folder.
func (c *control) secret(file string) (path string) {
	c.t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(c.t, err)
	path = filepath.Join(c.secrets, filepath.Base(file))
	require.NoError(c.t, os.WriteFile(path, text, 0o600))
	require.NoError(c.t, os.Chmod(path, 0o444))
	return path
}

// cli runs the image of the CLI.
func (c *control) cli(env map[string]string, options []string, args ...string) string {
	c.t.Helper()
	run := append(append([]string{"run", "--rm"}, confined(c.options(env)...)...), options...)
	return c.d.do(append(append(run, c.images["cli"]), args...)...)
}

// engines are the addresses of the servers.
func (c *control) engines() map[string]string {
	env := map[string]string{"GPUAAS_ENV": "dev"}
	for _, name := range []string{"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "VAULT_ADDR"} {
		env[name] = c.stack.Getenv(name)
	}
	return env
}

// setUp prepares the servers with the image of the CLI. It writes the logins of the API and the worker
// to a new volume.
func (c *control) setUp() {
	env, secrets := c.engines(), filepath.Join(c.stack.Dir, "secrets")
	env["GPUAAS_DATABASE_URL_FILE"] = filepath.Join(secrets, "database-url")
	env["GPUAAS_VAULT_TOKEN_FILE"] = filepath.Join(secrets, "vault-root-token")
	env["GPUAAS_SETUP_OUT_DIR"] = "/logins"
	env["GPUAAS_NODE_API_NAMES"] = "localhost"
	c.t.Log(c.cli(env, []string{"--volume", "logins:/logins"}, "admin", "setup"))
}

// startControlPlane starts the worker and the API.
func (c *control) startControlPlane() {
	c.env["worker"]["GPUAAS_AUDIT_ARCHIVE_DIR"] = "/var/lib/gpuaas-audit"
	c.startReady("worker", "audit:/var/lib/gpuaas-audit")
	c.t.Log(c.cli(c.engines(), nil, "admin", "promote"))
	c.env["api"]["GPUAAS_STATE_DIR"] = "/var/lib/gpuaas-api"
	c.startReady("api", "api:/var/lib/gpuaas-api")
}

// startReady starts a program with a new volume for its state and waits until it is ready.
func (c *control) startReady(name, volume string) {
	c.t.Helper()
	start := time.Now()
	c.d.start(name, c.images[name], append(c.options(c.env[name]), "--volume", "logins:"+loginsFolder+":ro", "--volume", volume)...)
	url := "http://" + c.env[name]["GPUAAS_METRICS_ADDR"] + "/readyz"
	harness.Poll(c.t, func() bool {
		require.Equal(c.t, "true", c.d.inspect(name, ".State.Running"), name)
		answer, err := harness.Do(c.t.Context(), http.DefaultClient, http.MethodGet, url, nil)
		return err == nil && answer.Status == http.StatusOK
	}, budget, every, name+" is ready")
	c.t.Logf("%s is ready after %s", name, time.Since(start).Round(10*time.Millisecond))
	c.d.do("exec", name, "/usr/local/bin/gpuaas-"+name, "--ready")
	c.checkConfined(name)
}

// checkConfined requires that a container's process is an ordinary user's, without capabilities, and
// that its root file system is read-only.
func (c *control) checkConfined(name string) {
	c.t.Helper()
	proc := "/proc/" + c.d.inspect(name, ".State.Pid")
	status, err := os.ReadFile(proc + "/status")
	require.NoError(c.t, err)
	assert.Regexp(c.t, `(?m)^Uid:\t`+user+"\t"+user+"\t"+user+"\t"+user+`$`, string(status), name)
	assert.Regexp(c.t, `(?m)^CapEff:\t0+$`, string(status), name)
	assert.Regexp(c.t, `(?m)^NoNewPrivs:\t1$`, string(status), name)
	mounts, err := os.ReadFile(proc + "/mounts")
	require.NoError(c.t, err)
	assert.Regexp(c.t, `(?m)^\S+ / \S+ ro,`, string(mounts), name)
}

// useNode registers a node, enrolls it with a real agent, and drains it, with the image of the CLI.
func (c *control) useNode() {
	env := map[string]string{"GPUAAS_API_URL": c.stack.Getenv("GPUAAS_API_URL"), "GPUAAS_API_TOKEN_FILE": filepath.Join(c.stack.Dir, "secrets", "admin-token")}
	const host = "gpu-17"
	c.cli(env, nil, "node", "register", host, "--sku", "cpu-dev", "--region", "local")
	out, err := c.stack.Command(c.t.Context(), "dev", "agent", host, "--detach", "--dir", c.stack.Dir).CombinedOutput()
	require.NoError(c.t, err, string(out))
	harness.StartWorkload(c.t, c.stack, host, "job", "sleep", "3600")
	state := func() string { return c.cli(env, nil, "node", "show", host, "-o", "jsonpath={.state}") }
	require.Equal(c.t, "active", state())
	c.t.Log(c.cli(env, nil, "node", "drain", host, "--yes", "--reason", "test of the images"))
	require.Equal(c.t, "drained", state())
}

// stop requires that the API and the worker end after SIGTERM, before Docker kills them.
func (c *control) stop() {
	for _, name := range []string{"api", "worker"} {
		start := time.Now()
		c.d.do("stop", "--time", grace, name)
		c.t.Logf("%s ended after %s", name, time.Since(start).Round(10*time.Millisecond))
		assert.Equal(c.t, "0", c.d.inspect(name, ".State.ExitCode"), name)
	}
}
