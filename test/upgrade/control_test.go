package upgrade

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/stack"
)

const (
	// budget bounds a wait for a process or an operation on a busy machine.
	budget = 10 * time.Minute
	every  = 250 * time.Millisecond
)

// replica is a running process of the control plane.
type replica struct {
	name string
	cmd  *exec.Cmd
	log  *harness.Buffer
	// end is closed when the process has ended.
	end chan struct{}
	// admin and node are the addresses of an API.
	admin, node string
	readyz      string
}

// control is the control plane of an installation: two APIs behind a balancer, and two workers, on
// the engines of a development stack.
type control struct {
	t           *testing.T
	stack       *stack.Stack
	dir         string
	api, worker []string // the environment that gpuaas dev gave the processes
	admin, node *balancer
	apis        []*replica
	workers     []*replica
}

// newControl starts a stack of the version and replaces its API and its worker by two of each.
func newControl(t *testing.T, r release) *control {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpuaas-upgrade-") //nolint:usetesting // Postgres runs as another user, who cannot enter the test's folder
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // Postgres runs as another user
	c := &control{t: t, dir: dir, admin: newBalancer(t), node: newBalancer(t)}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	up, err := stack.Up(t.Context(), r.program("gpuaas"), filepath.Join(dir, "dev"))
	c.stack = up
	t.Cleanup(func() { require.NoError(t, up.Down()) })
	require.NoError(t, err)
	parts, err := up.Parts(t.Context())
	require.NoError(t, err)
	c.api, c.worker = environ(t, parts["api"].PID), environ(t, parts["worker"].PID)
	for i := range 2 {
		c.startAPI(r, i)
		c.workers = append(c.workers, c.startWorker(r, i))
	}
	for _, name := range []string{"api", "worker"} {
		require.NoError(t, syscall.Kill(parts[name].PID, syscall.SIGTERM))
	}
	c.balance()
	return c
}

// environ is the environment of a process.
func environ(t *testing.T, pid int) (env []string) {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	require.NoError(t, err)
	for entry := range bytes.SplitSeq(raw, []byte{0}) {
		if len(entry) > 0 {
			env = append(env, string(entry))
		}
	}
	return env
}

// balance makes the balancers use the APIs that run, without those given.
func (c *control) balance(without ...*replica) {
	var admin, node []string
	for _, a := range c.apis {
		if !slices.Contains(without, a) {
			admin, node = append(admin, a.admin), append(node, a.node)
		}
	}
	c.admin.set(admin)
	c.node.set(node)
}

// startAPI starts an API as the replica i, in place of the one there, which has ended.
func (c *control) startAPI(r release, i int) {
	a := &replica{name: "api-" + strconv.Itoa(i), admin: harness.FreeAddress(c.t), node: harness.FreeAddress(c.t)}
	metrics := harness.FreeAddress(c.t)
	a.readyz = "http://" + metrics + "/readyz"
	c.start(a, r.program("gpuaas-api"), append(slices.Clone(c.api), "GPUAAS_ADMIN_ADDR="+a.admin, "GPUAAS_NODE_ADDR="+a.node,
		"GPUAAS_METRICS_ADDR="+metrics, "GPUAAS_STATE_DIR="+filepath.Join(c.dir, a.name), "GPUAAS_NODE_PUBLIC_URL=https://"+c.node.address()))
	if i == len(c.apis) {
		c.apis = append(c.apis, a)
	}
	c.apis[i] = a
	c.balance()
}

func (c *control) startWorker(r release, i int) *replica {
	w := &replica{name: "worker-" + r.name + "-" + strconv.Itoa(i)}
	metrics := harness.FreeAddress(c.t)
	w.readyz = "http://" + metrics + "/readyz"
	c.start(w, r.program("gpuaas-worker"), append(slices.Clone(c.worker), "GPUAAS_METRICS_ADDR="+metrics, "GPUAAS_NODE_PUBLIC_URL=https://"+c.node.address()))
	return w
}

// start starts a process and waits until it is ready.
func (c *control) start(p *replica, program string, env []string) {
	c.t.Helper()
	p.cmd, p.log, p.end = exec.CommandContext(context.WithoutCancel(c.t.Context()), program), &harness.Buffer{}, make(chan struct{})
	p.cmd.Env, p.cmd.Stderr = env, p.log
	require.NoError(c.t, p.cmd.Start())
	go func() {
		defer close(p.end)
		_ = p.cmd.Wait() // its exit code does not matter
	}()
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("%s\n%s", p.name, lastLines(p.log.String(), 20))
		}
		p.stop(c.t)
	})
	harness.Poll(c.t, func() bool { return p.ready(c.t) }, budget, every, p.name+" is ready")
}

// ready reports whether the process is ready.
func (p *replica) ready(t *testing.T) bool {
	t.Helper()
	select {
	case <-p.end:
		require.FailNow(t, p.name+" ended", lastLines(p.log.String(), 20))
	default:
	}
	answer, err := harness.Do(t.Context(), http.DefaultClient, http.MethodGet, p.readyz, nil)
	return err == nil && answer.Status == http.StatusOK
}

// stop asks the process to end and waits for it.
func (p *replica) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	harness.Receive(t, "the end of "+p.name, p.end)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// setupEnv is the environment of gpuaas admin setup.
func (c *control) setupEnv() []string {
	secrets := filepath.Join(c.stack.Dir, "secrets")
	return append(slices.Clone(c.stack.Env), "GPUAAS_DATABASE_URL_FILE="+filepath.Join(secrets, "database-url"),
		"GPUAAS_VAULT_TOKEN_FILE="+filepath.Join(secrets, "vault-root-token"), "GPUAAS_SETUP_OUT_DIR="+secrets, "GPUAAS_ENV=dev",
		"GPUAAS_NODE_API_NAMES=localhost,127.0.0.1,api.internal")
}

// replaceAPIs replaces the APIs one by one.
func (c *control) replaceAPIs(to release) {
	for i, old := range c.apis {
		c.balance(old)
		old.stop(c.t)
		c.startAPI(to, i)
	}
}

// replaceWorkers starts the workers of a version as standbys, promotes it after ready returned, and stops
// the others.
func (c *control) replaceWorkers(ctx context.Context, to release, ready func()) {
	old := c.workers
	c.workers = []*replica{c.startWorker(to, 0), c.startWorker(to, 1)}
	ready()
	to.run(ctx, c.t, c.stack.Env, "admin", "promote")
	for _, w := range old {
		w.stop(c.t)
	}
}

// requireReady requires that every process is ready.
func (c *control) requireReady(when string) {
	c.t.Helper()
	for _, p := range slices.Concat(c.apis, c.workers) {
		harness.Poll(c.t, func() bool { return p.ready(c.t) }, budget, every, p.name+" is ready "+when)
	}
}
