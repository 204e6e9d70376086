package agent

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/release"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// The versions of the builds in these tests.
const (
	oldVersion = "v1.0.0"
	newVersion = "v2.0.0"
)

// buildAgent builds the agent of the development stack as a version.
func buildAgent(t *testing.T, version string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), version)
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath",
		"-ldflags", "-s -w -X github.com/gpuaas/gpuaas/schema/version.version="+version, "-o", bin, "../cmd/gpuaas-dev-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// upgradeNode is a node whose agent is a process that a supervisor restarts.
type upgradeNode struct {
	*agenttest.API
	conf      Config
	installed string
	key       ed25519.PrivateKey
	log       agenttest.LogBuffer
	pid       atomic.Int64
	serve     func(w http.ResponseWriter, data []byte) // nil sends all
	mu        sync.Mutex
	binaries  map[string][]byte
}

func newUpgradeNode(t *testing.T, installed string) *upgradeNode {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	f := agenttest.New(t)
	n := &upgradeNode{API: f, conf: configFor(f), key: private, binaries: map[string][]byte{}}
	n.installed = filepath.Join(filepath.Dir(n.conf.StateDir), "installed")
	require.NoError(t, os.Link(installed, n.installed))
	n.conf.ReleasePubkeys = base64.StdEncoding.EncodeToString(public)
	f.OnPackage = func(w http.ResponseWriter, sum string) {
		n.mu.Lock()
		data := n.binaries[sum]
		n.mu.Unlock()
		if n.serve != nil {
			n.serve(w, data)
			return
		}
		_, _ = w.Write(data)
	}
	return n
}

// supervise runs the agent, and again when it ends, until the test ends.
func (n *upgradeNode) supervise(t *testing.T) {
	t.Helper()
	var stopped atomic.Bool
	done := make(chan struct{})
	env := append(environ(n.conf), "GPUAAS_RELEASE_PUBKEYS="+n.conf.ReleasePubkeys, "PATH="+os.Getenv("PATH"))
	go func() {
		defer close(done)
		for !stopped.Load() {
			cmd := exec.Command(n.installed, "run")
			cmd.Env, cmd.Stdout, cmd.Stderr = env, &n.log, &n.log
			if cmd.Start() != nil {
				return
			}
			n.pid.Store(int64(cmd.Process.Pid))
			_ = cmd.Wait() // a crash is expected
		}
	}()
	t.Cleanup(func() {
		stopped.Store(true)
		eventually(t, "the end of the agent", func() bool {
			n.kill()
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		if t.Failed() {
			t.Log(n.log.String())
		}
	})
}

// kill ends the agent's process, whichever binary it runs.
func (n *upgradeNode) kill() {
	if pid := n.pid.Load(); pid > 0 {
		_ = syscall.Kill(int(pid), syscall.SIGKILL)
	}
}

// publish signs a binary as a version.
func (n *upgradeNode) publish(version string, data []byte) task.UpgradeParams {
	n.T.Helper()
	sum := schema.SHA256Hex(data)
	n.mu.Lock()
	n.binaries[sum] = data
	n.mu.Unlock()
	document, err := trust.SignRelease(trust.Release{V: 1, Version: version, Size: int64(len(data)), SHA256: sum}, n.key)
	require.NoError(n.T, err)
	return task.UpgradeParams{Release: string(document)}
}

// upgrade sends the task and returns its result.
func (n *upgradeNode) upgrade(seq int64, p task.UpgradeParams) task.Result {
	n.T.Helper()
	payload := n.Payload(task.AgentUpgrade, seq, p)
	n.Offers <- n.OfferOf(payload, 1)
	return n.Result(payload.TaskID)
}

// runs waits for a heartbeat of a version.
func (n *upgradeNode) runs(version string) {
	n.T.Helper()
	n.Until("a heartbeat of "+version, func() bool {
		count := len(n.Heartbeats)
		return count > 0 && n.Heartbeats[count-1].AgentVersion == version
	})
}

// trial reports whether the state on disk has a trial, and whether it began.
func (n *upgradeNode) trial() (set, began bool) {
	var s struct {
		Trial  json.RawMessage
		Starts int
	}
	data, err := os.ReadFile(filepath.Join(n.conf.StateDir, "releases.json"))
	return err == nil && json.Unmarshal(data, &s) == nil && len(s.Trial) > 0, s.Starts > 0
}

// otherProgram is a release that is no agent: what it does instead of running.
func otherProgram(version, run string) []byte {
	return []byte("#!/bin/sh\ncase $1 in\nversion) echo gpuaas-node-agent " + version + " test;;\n*) " + run + ";;\nesac\n")
}

// TestUpgradeProcesses upgrades real agent processes between real builds.
func TestUpgradeProcesses(t *testing.T) {
	t.Parallel()
	before, after := buildAgent(t, oldVersion), buildAgent(t, newVersion)
	next, err := os.ReadFile(after)
	require.NoError(t, err)
	node := func(t *testing.T) *upgradeNode {
		t.Helper()
		return newUpgradeNode(t, before)
	}
	t.Run("works", func(t *testing.T) {
		t.Parallel()
		n := node(t)
		n.supervise(t)
		n.runs(oldVersion)
		pid := n.pid.Load()
		r := n.upgrade(1, n.publish(newVersion, next))
		require.Equal(t, task.Succeeded, r.Status, r.Message)
		require.Equal(t, newVersion, decode[task.UpgradeResult](t, r.Output).Version)
		n.runs(newVersion)
		require.Equal(t, pid, n.pid.Load(), "the service's process stays")
		n.kill()
		r = n.upgrade(2, n.publish(newVersion, next))
		require.Equal(t, task.Succeeded, r.Status, "after a restart: %s", r.Message)
	})
	t.Run("rejected", func(t *testing.T) {
		t.Parallel()
		n := node(t)
		n.supervise(t)
		good := n.publish(newVersion, next)
		n.mu.Lock()
		n.binaries[schema.SHA256Hex(next)] = append(next[:len(next)-1:len(next)-1], next[len(next)-1]+1)
		n.mu.Unlock()
		for i, c := range []struct {
			params task.UpgradeParams
			want   string
		}{
			{newUpgradeNode(t, before).publish(newVersion, next), "no accepted key signed"},
			{good, "not those of release"},
			{n.publish("v3.0.0", otherProgram("v3.1.0", "exit 1")), "reports"},
			{n.publish("v3.0.0", []byte("no program")), "cannot run it"},
		} {
			r := n.upgrade(int64(i+1), c.params)
			require.Equal(t, task.Failed, r.Status)
			require.Equal(t, schema.KindTaskRefused, r.Code)
			require.Contains(t, r.Message, lifecycle.ReasonReleaseRejected+": ")
			require.Contains(t, r.Message, c.want)
		}
		n.runs(oldVersion)
	})
	t.Run("truncated", func(t *testing.T) {
		t.Parallel()
		n := node(t)
		n.serve = func(w http.ResponseWriter, data []byte) {
			_, _ = w.Write(data[:len(data)/2])
			panic(http.ErrAbortHandler)
		}
		n.supervise(t)
		r := n.upgrade(1, n.publish(newVersion, next))
		require.Equal(t, task.Failed, r.Status)
		require.Contains(t, r.Message, "the download ended after")
		n.runs(oldVersion)
	})
	t.Run("crashes at start", func(t *testing.T) {
		t.Parallel()
		n := node(t)
		n.supervise(t)
		r := n.upgrade(1, n.publish("v3.0.0", otherProgram("v3.0.0", "exit 1")))
		require.Equal(t, "upgrade_rolled_back: v3.0.0: it was started 3 times and made no successful poll", r.Message)
		n.runs(oldVersion)
		r = n.upgrade(2, n.publish(newVersion, next))
		require.Equal(t, task.Succeeded, r.Status, r.Message)
		n.runs(newVersion)
	})
	t.Run("hangs", func(t *testing.T) { // systemd's watchdog kills it
		t.Parallel()
		need.That(t, runtime.GOOS == "linux", "it reads /proc")
		n := node(t)
		n.supervise(t)
		p := n.Payload(task.AgentUpgrade, 1, n.publish("v3.0.0", otherProgram("v3.0.0", "exec sleep 1000")))
		n.Offers <- n.OfferOf(p, 1)
		for range 3 {
			eventually(t, "the release hangs", func() bool { return n.program() == "sleep" })
			n.kill()
			eventually(t, "it is gone", func() bool { return n.program() != "sleep" })
		}
		require.Contains(t, n.Result(p.TaskID).Message, lifecycle.ReasonUpgradeRolledBack)
		n.runs(oldVersion)
	})
	for _, at := range []string{"progress", "download", "trial", "poll", "result"} {
		t.Run("killed at "+at, func(t *testing.T) {
			t.Parallel()
			n := node(t)
			n.killOnce(at)
			n.supervise(t)
			r := n.upgrade(1, n.publish(newVersion, next))
			require.Equal(t, task.Succeeded, r.Status, r.Message)
			n.runs(newVersion)
		})
	}
}

// program is the name of the agent's program.
func (n *upgradeNode) program() string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n.pid.Load()))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// killOnce kills the agent at the first call of a kind.
func (n *upgradeNode) killOnce(at string) {
	var once sync.Once
	now := func(here bool) error {
		if here {
			once.Do(n.kill)
		}
		return nil
	}
	switch at {
	case "progress":
		n.Progress = func(string, task.Progress) (r wire.ProgressResponse, err error) { return r, now(true) }
	case "download":
		n.serve = func(w http.ResponseWriter, data []byte) {
			_, _ = w.Write(data[:len(data)/2])
			_ = now(true)
			_, _ = w.Write(data[len(data)/2:])
		}
	case "trial":
		n.serve = func(w http.ResponseWriter, data []byte) {
			_, _ = w.Write(data)
			go once.Do(func() {
				eventually(n.T, "a trial", func() bool { set, _ := n.trial(); return set })
				n.kill()
			})
		}
	case "poll":
		n.OnWait = func(int) error { _, began := n.trial(); return now(began) }
	case "result":
		n.OnResult = func(int, string, task.Result) error { return now(true) }
	}
}

// TestTrialTimeout: an agent on trial whose polls fail stops, and asks its caller to start
// the installed one.
func TestTrialTimeout(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	f.OnWait = func(int) error { return schema.NewError(schema.KindServiceUnavailable, "no database") }
	sum := schema.SHA256Hex(nil)
	require.NoError(t, os.MkdirAll(c.StateDir, 0o700))
	state := filepath.Join(c.StateDir, "releases.json")
	require.NoError(t, os.WriteFile(state, []byte(`{"trial":{"version":"v9.0.0","sha256":"`+sum+`"},"starts":1}`), 0o600))
	quick := quickTiming()
	quick.trial = quick.poll.Max
	a := start(t, c, Deps{Running: release.Running{Installed: "/nowhere", Release: sum}, timing: &quick})
	a.ends(t)
	require.ErrorIs(t, a.err, ErrReplaced)
	text, err := os.ReadFile(state)
	require.NoError(t, err)
	require.Contains(t, string(text), `"failed":{"version":"v9.0.0"`)
	require.NotContains(t, string(text), `"trial"`)
}
