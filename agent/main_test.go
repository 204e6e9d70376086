package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// reexecVar makes the test binary be the agent.
const reexecVar = "GPUAAS_TEST_REEXEC"

func TestMain(m *testing.M) {
	if os.Getenv(reexecVar) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := Main(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, Extras{Drivers: devworkload.Drivers()})
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// environ is the environment that makes LoadConfig return c.
func environ(c Config) []string {
	return []string{
		"GPUAAS_NODE_ID=" + c.NodeID, "GPUAAS_API_URL=" + c.APIURL, "GPUAAS_ENROLLMENT_TOKEN=" + c.EnrollmentToken.Reveal(),
		"GPUAAS_TASK_SIGNING_PUBKEYS=" + c.SigningPubkeys, "GPUAAS_ENV=" + c.Env, "GPUAAS_CA_BUNDLE_PATH=" + c.CABundlePath,
		"GPUAAS_NODE_CERT_CA_BUNDLE_PATH=" + c.NodeCABundlePath, "GPUAAS_CERT_PATH=" + c.CertPath,
		"GPUAAS_KEY_PATH=" + c.KeyPath, "GPUAAS_STATE_DIR=" + c.StateDir, "GPUAAS_WORKLOAD_DRIVER=" + c.WorkloadDriver,
		"GPUAAS_HEALTH_CHECKS=" + cmp.Or(c.HealthChecks, "none"),
	}
}

func runCommand(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = Main(t.Context(), args, env, &out, &errOut, Extras{Drivers: devworkload.Drivers()})
	return code, out.String(), errOut.String()
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		code int
		out  string // in stdout
		err  string // in stderr
	}{
		"nothing":     {nil, schema.ExitUsage, "", "Usage:"},
		"help":        {[]string{"--help"}, schema.ExitDone, "Examples:", ""},
		"help of run": {[]string{"run", "--help"}, schema.ExitDone, "Examples:", ""},
		"unknown":     {[]string{"dance"}, schema.ExitUsage, "", `unknown command "dance"`},
		"argument":    {[]string{"run", "fast"}, schema.ExitUsage, "", `unexpected argument "fast"`},
		"flag":        {[]string{"run", "--fast"}, schema.ExitUsage, "", "fast"},
		"no config":   {[]string{"run"}, schema.ExitUsage, "", "GPUAAS_API_URL: is not set"},
		"output":      {[]string{"status", "-o", "xml"}, schema.ExitUsage, "", "want table or json"},
		"version":     {[]string{"version"}, schema.ExitDone, version.Version(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"GPUAAS_STATE_DIR=" + t.TempDir()}
			code, out, errOut := runCommand(t, env, c.args...)
			require.Equal(t, c.code, code, errOut)
			require.Contains(t, out, c.out)
			require.Contains(t, errOut, c.err)
		})
	}
}

func TestEnrollCommand(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	code, out, errOut := runCommand(t, environ(c), "enroll")
	require.Equal(t, schema.ExitDone, code, errOut)
	require.Contains(t, out, "enrolled: "+f.ID.URI())
	require.NotContains(t, out+errOut, c.EnrollmentToken.Reveal())

	code, out, _ = runCommand(t, environ(c), "enroll")
	require.Equal(t, schema.ExitDone, code)
	require.Contains(t, out, "already enrolled")
	require.Equal(t, 1, f.Count("enroll"))
}

func TestEnrollCommandRefused(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.OnEnroll = func(int, wire.EnrollRequest) error {
		return schema.NewError(schema.KindTokenExpired, "the token expired").WithNext("gpuaas node reissue-enrollment X")
	}
	code, _, errOut := runCommand(t, environ(configFor(f)), "enroll")
	require.Equal(t, schema.ExitFailed, code)
	require.Contains(t, errOut, "the token expired")
	require.Contains(t, errOut, "next: gpuaas node reissue-enrollment X")

	c := configFor(f)
	c.APIURL = "https://localhost:1"
	code, _, errOut = runCommand(t, environ(c), "enroll")
	require.Equal(t, schema.ExitUnreachable, code)
	require.Contains(t, errOut, "localhost:1")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	read := func() Status {
		code, out, errOut := runCommand(t, environ(c), "status", "-o", "json")
		require.Equal(t, schema.ExitDone, code, errOut)
		return decode[Status](t, []byte(out))
	}
	s := read()
	require.Nil(t, s.Identity)
	require.NotEmpty(t, s.IdentityFault)
	require.Nil(t, s.LastPoll)

	writeSpec(t, c, "job", false, "sleep", "1000")
	start(t, c, Deps{})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	f.Result(p.TaskID)
	eventually(t, "a reported task and a workload", func() bool {
		s = read()
		return len(s.Tasks) == 1 && s.Tasks[0].Reported && s.LastPoll != nil
	})
	require.Equal(t, f.ID.URI(), s.Identity.URI)
	require.Empty(t, s.IdentityFault+s.IssuerFault)
	require.True(t, s.LastPoll.OK)
	require.True(t, s.Cordoned)
	require.Equal(t, task.Succeeded, s.Tasks[0].Status)
	code, out, _ := runCommand(t, environ(c), "status")
	require.Equal(t, schema.ExitDone, code)
	for _, fact := range []string{f.ID.URI(), p.TaskID, s.Identity.Fingerprint, text.FormatTime(s.Identity.NotBefore),
		trust.CertFactsOf(f.Server.Cert).Fingerprint, trust.CertFactsOf(f.Nodes.Cert).Fingerprint} {
		require.Contains(t, out, fact)
	}
}

// TestStatusOfUnconfiguredNode: the command names the problem and the next step.
func TestStatusOfUnconfiguredNode(t *testing.T) {
	t.Parallel()
	env := []string{"GPUAAS_STATE_DIR=" + t.TempDir()}
	code, out, errOut := runCommand(t, env, "status")
	require.Equal(t, schema.ExitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errOut, "this node is not configured: GPUAAS_NODE_ID is neither in the environment nor in /etc/gpuaas/node-agent.env")
	require.Contains(t, errOut, "next: on a machine with the gpuaas CLI: gpuaas node bootstrap-script NODE")

	code, out, _ = runCommand(t, env, "status", "-o", "json")
	require.Equal(t, schema.ExitUsage, code)
	e := decode[schema.ErrorBody](t, []byte(out)).Error
	require.Contains(t, e.Message, "this node is not configured")
	require.Contains(t, e.Next, "bootstrap-script")
}

func TestStateDirLock(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	a := start(t, c, Deps{})
	f.Until("a poll", func() bool { return f.Counts["wait"] > 0 })
	code, _, errOut := runCommand(t, environ(c), "run")
	require.Equal(t, schema.ExitRefused, code)
	require.Contains(t, errOut, "another agent (pid ")
	require.Contains(t, errOut, c.StateDir)
	a.halt()
	b, _ := newAgent(t, c, Deps{})
	b.Close()
}

func TestLogLines(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	a := start(t, configFor(f), Deps{})
	p := f.Payload(task.FactsCollect, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	f.Result(p.TaskID)
	f.Until("two more polls", func() bool { return f.Counts["wait"] > 2 })
	a.halt()
	seen := map[string]bool{}
	for line := range strings.Lines(a.log.String()) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		for _, k := range []string{"time", "level", "msg", "node_id"} {
			require.Contains(t, m, k)
		}
		msg, _ := m["msg"].(string)
		require.Equal(t, strings.ToLower(msg), msg)
		if m["task_id"] != nil && m["task_id"] == p.TaskID {
			require.Equal(t, p.CorrelationID, m["correlation_id"])
			seen["task"] = true
		}
		seen[msg] = true
	}
	for _, want := range []string{"agent started", "enrollment succeeded", "task", "task finished", "poll ended without a task", "agent stopped"} {
		require.True(t, seen[want], want)
	}
}

func TestNotifySystemd(t *testing.T) {
	f := agenttest.New(t)
	c := configFor(f)
	said := notifySocket(t, "30000")
	a := start(t, c, Deps{})
	require.Equal(t, "READY=1", <-said)
	require.Equal(t, "WATCHDOG=1", <-said)
	a.end()
	for line := range said {
		if line == "STOPPING=1" {
			return
		}
		require.Equal(t, "WATCHDOG=1", line)
	}
}

func TestWatchdogStopsWithLoop(t *testing.T) {
	f := agenttest.New(t)
	c := configFor(f)
	said := notifySocket(t, "3000")
	a, _ := newAgent(t, c, Deps{})
	defer a.Close()
	require.True(t, a.alive(time.Now()))
	a.lastLoop.Store(time.Now().Add(-2 * stalledAfter).UnixNano())
	require.False(t, a.alive(time.Now()))
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	a.watchdog(ctx)
	require.Empty(t, said)
}

// notifySocket is systemd's end of sd_notify, which enables a watchdog.
func notifySocket(t *testing.T, watchdogUsec string) (said chan string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "n") //nolint:usetesting // a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", watchdogUsec)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	said = make(chan string, 64)
	go func() {
		buf := make([]byte, 64)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			said <- string(buf[:n])
		}
	}()
	return said
}
