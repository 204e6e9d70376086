package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	t.Run("node names", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		gone := node()
		gone.Host, gone.State = "gpu-01", lifecycle.NodeRemoved
		h.api.nodes = append(h.api.nodes, gone)
		for _, args := range [][]string{{"node", "drain", ""}, {"op", "force", ""}, {"audit", "--node", ""}, {"task", "list", "--node", ""}} {
			require.Zero(t, h.run(append([]string{"__complete"}, args...)...))
			require.Equal(t, "gpu-17\tactive\n:4\n", h.out.String())
		}
	})
	t.Run("10,000 nodes", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.nodes = nil
		for i := range 10_000 {
			n := node()
			n.ID, n.Host = schema.NewID(), fmt.Sprintf("gpu-%05d", i)
			h.api.nodes = append(h.api.nodes, n)
		}
		require.Zero(t, h.run("__complete", "node", "drain", "gpu-0"))
		require.Equal(t, maxCompletions, strings.Count(h.out.String(), "\tactive\n"))
		require.Len(t, h.api.requests, 1, "one request, bounded by the server")
		require.Contains(t, h.api.requests[0], "host_prefix=gpu-0")
		require.Contains(t, h.api.requests[0], "limit=200")
		require.Contains(t, h.api.requests[0], "fields=id%2Chost%2Cstate")
		require.Zero(t, h.run("__complete", "node", "drain", "gpu-09999"))
		require.Equal(t, "gpu-09999\tactive\n:4\n", h.out.String())
	})
	t.Run("operations of the node", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.operations = []wire.OperationSummary{
			{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain, Status: lifecycle.OperationParked},
			{OperationID: runID, NodeID: runID, Host: "gpu-18", Action: lifecycle.ActionDrain, Status: lifecycle.OperationParked}}
		require.Zero(t, h.run("__complete", "op", "retry", "gpu-17", "--operation", ""))
		require.Equal(t, operationID+"\tdrain gpu-17, parked\n:4\n", h.out.String())
	})
	t.Run("providers and instances", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		for _, args := range [][]string{{"provider", "show", ""}, {"node", "register", "gpu-18", "--mode", ""}} {
			require.Zero(t, h.run(append([]string{"__complete"}, args...)...))
			require.Equal(t, "libvirt\tenabled\nmaas\tdisabled\nmanual\tenabled\n:4\n", h.out.String())
		}
		require.Zero(t, h.run("__complete", "node", "create", "vm", "--mode", ""))
		require.Equal(t, "libvirt\tenabled\nmaas\tdisabled\nmanual\tenabled\n:4\n", h.out.String())
		h.api.providers[1].Images, h.api.nodes[0].OnboardingMode = []string{"jammy", "noble"}, "libvirt"
		for flag, offered := range map[string]string{"--provider-region": "ams1\nfra1\nfra2\nlon1\n", "--type": "cpu-2\ngpu-8\n", "--image": "noble\n"} {
			for _, command := range [][]string{{"node", "provision", "gpu-17"}, {"node", "create", "vm", "--mode", "libvirt"}} {
				require.Zero(t, h.run(append(append([]string{"__complete"}, command...), flag, "")...))
				require.Equal(t, offered+":4\n", h.out.String(), command)
			}
		}
		require.Zero(t, h.run("__complete", "node", "create", "vm", "--image", ""))
		require.Equal(t, "jammy\nnoble\n:4\n", h.out.String())
		require.Zero(t, h.run("__complete", "node", "provision", "absent", "--type", ""))
		require.Equal(t, ":5\n", h.out.String())
		require.Zero(t, h.run("__complete", "instance", "show", ""))
		require.Contains(t, h.out.String(), instanceID+"\tgpu-17, draining\n")
	})
	t.Run("one node only", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("__complete", "node", "drain", "gpu-17", ""))
		require.Equal(t, ":4\n", h.out.String())
	})
	t.Run("no api", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.server.Close()
		require.Zero(t, h.run("__complete", "node", "drain", ""))
		require.Equal(t, ":5\n", h.out.String())
	})
	t.Run("output forms", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("__complete", "node", "list", "-o", ""))
		require.Equal(t, "table\nwide\njson\nyaml\nname\njsonpath=\n:4\n", h.out.String())
	})
	t.Run("scripts", func(t *testing.T) {
		t.Parallel()
		for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
			h := setup(t)
			require.Zero(t, h.run("completion", shell))
			require.Contains(t, h.out.String(), "gpuaas")
			require.Empty(t, h.api.requests)
		}
	})
}

func TestVersion(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Zero(t, h.run("version"))
	require.True(t, strings.HasPrefix(h.out.String(), "gpuaas "), h.out.String())
	require.Contains(t, h.out.String(), "\nserver v0.9.0 (commit 0123456789ab) go1.26 linux/arm64\n")
	require.Zero(t, h.run("version", "-o", "json"))
	require.Contains(t, h.out.String(), `"go": "go1.`)
	require.Contains(t, h.out.String(), `"version": "v0.9.0"`)
	require.Zero(t, h.run("version", "--client"))
	require.NotContains(t, h.out.String()+h.err.String(), "server")
	h.api.refuse = schema.NewError(schema.KindForbidden, "alice has the role reporter")
	require.Zero(t, h.run("version"))
	require.NotContains(t, h.out.String(), "server")
	require.Contains(t, h.err.String(), "the version of the server is not known: alice has the role reporter")
	require.Zero(t, h.run("--version"))
	require.Equal(t, "gpuaas "+version.Version()+"\n", h.out.String())
}

func TestAdminSetup(t *testing.T) {
	t.Parallel()
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, schema.ExitFailed, setup(t).run("admin", "setup"))
	})
	t.Run("done", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		var got temporal.Config
		h.env.platform.Setup = func(_ context.Context, c temporal.Config, log io.Writer) error {
			got = c
			fmt.Fprintln(log, "database: schema is up to date")
			return nil
		}
		h.golden("admin-setup", "admin", "setup", "--address", "temporal.test:7233")
		h.env.platform.RotateSecretIDs = func(context.Context, io.Writer) error { return nil }
		for _, command := range []string{"setup", "rotate-secret-ids"} {
			require.Zero(t, h.run("admin", command, "-o", "json", "--address", "temporal.test:7233"), h.err.String())
			var done doneMessage
			require.NoError(t, json.Unmarshal(h.out.Bytes(), &done), command)
			require.NotEmpty(t, done.Message, command)
			require.NotContains(t, h.err.String(), done.Message, command)
		}
		require.Equal(t, temporal.Config{Address: "temporal.test:7233"}, got)
	})
	t.Run("failed", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.env.platform.Setup = func(context.Context, temporal.Config, io.Writer) error {
			return schema.Wrap(schema.KindServiceUnavailable, errors.New("connection refused"), "Vault at http://vault.test:8200 does not answer")
		}
		h.golden("admin-setup-failed", "admin", "setup")
	})
}

// onTerminalProgress is the progress of an operation on gpu-17 that redraws in place.
func onTerminalProgress(h *harness, color bool) *progress {
	h.env.tty.err, h.env.noColor = true, !color
	return newProgress(h.env, followRequest{target: target{id: nodeID, host: "gpu-17"}})
}

func TestLiveView(t *testing.T) {
	t.Parallel()
	t.Run("redraws in place", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		p := onTerminalProgress(h, false)
		h.clock.now = start().Add(4 * time.Second)
		p.show(drainAt(0, lifecycle.OperationRunning), note{})
		h.clock.now = start().Add(17 * time.Second)
		p.show(drainAt(1, lifecycle.OperationRunning), note{"outdated", "no worker answers; this is the admin API's record"})
		p.show(parkedDrain(), note{})
		final := drainAt(3, lifecycle.OperationCompleted)
		final.Operation.Phases[1].State = lifecycle.PhaseForced
		p.show(final, note{})
		compareGolden(t, "testdata/golden/live.txt", strings.ReplaceAll(h.err.String(), "\x1b", "^["))
	})
	t.Run("colors", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		p := onTerminalProgress(h, true)
		p.show(parkedDrain(), note{})
		compareGolden(t, "testdata/golden/live-color.txt", strings.ReplaceAll(h.err.String(), "\x1b", "^["))
	})
	t.Run("no line wraps and nothing foreign steers", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.env.tty.width = func() int { return 40 }
		p := onTerminalProgress(h, false)
		st := parkedDrain()
		st.Operation.Phases[1].Reason = "\x1b[2J" + strings.Repeat("long ", 40)
		p.show(st, note{"long", strings.Repeat("note ", 40)})
		require.NotContains(t, h.err.String(), "\x1b[2J")
		for line := range strings.Lines(h.err.String()) {
			text := strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "\r\x1b[2K")
			require.LessOrEqual(t, len([]rune(text)), 39, text)
		}
	})
	t.Run("on a terminal", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.onTerminal("")
		h.vars["NO_COLOR"] = "1"
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(3, lifecycle.OperationCompleted)}
		h.golden("live-drain", "node", "drain", "gpu-17", "--yes")
	})
	t.Run("spins between answers", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.onTerminal("")
		ticks := make(chan time.Time)
		stopped := false
		h.env.clock.spin = func() (<-chan time.Time, func()) { return ticks, func() { stopped = true } }
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(0, lifecycle.OperationRunning), drainAt(3, lifecycle.OperationCompleted)}
		again := make(chan time.Time)
		h.env.clock.after = func(time.Duration) <-chan time.Time {
			go func() { // three redraws, then the next answer
				for range 3 {
					ticks <- start()
				}
				again <- start()
			}()
			return again
		}
		require.Zero(t, h.run("node", "drain", "gpu-17", "--yes", "--no-color"))
		require.Equal(t, 5, strings.Count(h.err.String(), "drain gpu-17  "))
		require.True(t, stopped)
	})
}

// On a terminal that is too narrow for the columns before the next step, each operation is a block of lines.
func TestStuckOnNarrowTerminal(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.temporal.parked = []lifecycle.OperationStatus{parkedDrain(), parkedDrain()}
	h.env.tty.out, h.env.tty.outWidth = true, func() int { return 60 }
	h.golden("stuck-narrow", "stuck")
	wide := setup(t)
	wide.temporal.parked = h.temporal.parked
	wide.env.tty.out, wide.env.tty.outWidth = true, func() int { return 120 }
	require.Zero(t, wide.run("stuck"))
	require.Contains(t, wide.out.String(), "NODE    ACTION")
}

func TestStuckWatch(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.temporal.parked = []lifecycle.OperationStatus{parkedDrain()}
	ctx, cancel := context.WithCancel(t.Context())
	h.clock.onWait = func(n int) {
		h.temporal.parked = nil
		if n == 2 {
			cancel()
		}
	}
	h.env.tty.out, h.env.tty.outWidth = true, func() int { return 400 }
	h.goldenCtx(ctx, "stuck-watch", "stuck", "--watch")
	h.env.tty.out = false
	require.Zero(t, h.runCtx(ctx, "stuck", "--watch"))
	require.NotContains(t, h.out.String()+h.err.String(), "\x1b", "a pipe gets no codes of a terminal")
}
