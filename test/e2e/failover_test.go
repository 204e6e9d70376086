package e2e

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	devstack "github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// TestFailoverOfTheDatabase kills the primary while nodes drain, promotes the synchronous
// standby, and starts the old primary again, which the URL names first. No process is restarted
// and nothing is decided: each drain completes, no node runs a destructive task twice, the audit
// trail verifies, and nothing is written to the old primary.
func TestFailoverOfTheDatabase(t *testing.T) {
	t.Parallel()
	const size = 12
	pair := pgtest.NewPair(t, func(context.Context, string) error { return nil }) // dev up migrates
	s := stackOn(t, pair)
	f := &simulatedFleet{prefix: "fo", size: size, cmd: s.Command(context.WithoutCancel(t.Context()), "dev", "fleet", strconv.Itoa(size), "--dir", s.Dir,
		"--prefix", "fo", "--region", "region-1", "--report-every", "1s", "--task-time", "5s..10s")}
	f.start(t)
	s.await(t, lifecycle.NodeActive, size)
	nodes := s.nodes(t)
	require.Len(t, nodes, size)
	for _, n := range nodes[:size/2] {
		s.ok(t, "node", "drain", n.Host, "--yes", "--no-wait", "--reason", "test")
	}
	harness.Poll(t, func() bool { return f.count(t, "works") > 0 }, conditionTimeout, 100*time.Millisecond, "drains run")

	pair.Primary.Kill()
	require.Error(t, s.run(t, "node", "drain", nodes[size/2].Host, "--yes", "--no-wait", "--reason", "test"), "there is no primary")
	pair.Standby.Promote()
	for _, n := range nodes[size/2:] {
		harness.Poll(t, func() bool { return s.run(t, "node", "drain", n.Host, "--yes", "--no-wait", "--reason", "test") == nil },
			conditionTimeout, time.Second, "a drain starts on the promoted server")
	}
	pair.Primary.Start() // as a machine does that starts its services again
	events := eventsOn(t, pair.Primary)
	s.await(t, lifecycle.NodeDrained, size)
	require.Zero(t, f.count(t, "repeated"), "a destructive task ran twice")
	for _, n := range nodes {
		s.ok(t, "node", "reactivate", n.Host, "--no-wait", "--reason", "test")
	}
	s.await(t, lifecycle.NodeActive, size)
	s.ok(t, "audit", "--verify")
	require.Equal(t, events, eventsOn(t, pair.Primary), "a process wrote to the old primary")
}

// pairStack is a stack whose database is a pair of servers.
type pairStack struct{ *devstack.Stack }

func stackOn(t *testing.T, pair *pgtest.Pair) pairStack {
	t.Helper()
	bin, err := filepath.Abs("../../bin/gpuaas")
	require.NoError(t, err)
	up, err := devstack.UpWith(t.Context(), bin, filepath.Join(t.TempDir(), "dev"), []string{"GPUAAS_DATABASE_URL=" + pair.URL()})
	t.Cleanup(func() { require.NoError(t, up.Down()) })
	require.NoError(t, err)
	return pairStack{up}
}

// run runs the CLI and returns an error if it fails.
func (s pairStack) run(t *testing.T, args ...string) error {
	t.Helper()
	out, err := s.Command(t.Context(), args...).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		require.NoError(t, err)
	}
	t.Logf("gpuaas %v: %s", args, out)
	return err
}

func (s pairStack) ok(t *testing.T, args ...string) {
	t.Helper()
	require.NoError(t, s.run(t, args...))
}

// nodes lists the nodes. It has none while the API cannot read the database.
func (s pairStack) nodes(t *testing.T) []wire.NodeView {
	t.Helper()
	out, err := s.Command(t.Context(), "node", "list", "-o", "json").Output()
	if err != nil {
		return nil
	}
	return decode[wire.NodeList](t, result{stdout: string(out)}).Nodes
}

// await waits until all nodes are in a state, without an open operation.
func (s pairStack) await(t *testing.T, state lifecycle.NodeState, size int) {
	t.Helper()
	harness.Poll(t, func() bool {
		reached := 0
		for _, n := range s.nodes(t) {
			if n.State == state && n.Operation == nil {
				reached++
			}
		}
		return reached == size
	}, fleetTimeout, time.Second, "all nodes are "+string(state))
}

// eventsOn counts the audit events of a server, whichever is the primary.
func eventsOn(t *testing.T, m *pgtest.Member) (events int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), m.URL())
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }() // read only
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM audit_events").Scan(&events))
	return events
}
