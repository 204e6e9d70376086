package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// nodesOfPostgres are the cases of TestPostgresRestored: operations that were claimed
// before the copy and after it.
func nodesOfPostgres() []*restoredNode {
	drain, provision, reactivate := lifecycle.ActionDrain, lifecycle.ActionProvision, lifecycle.ActionReactivate
	return []*restoredNode{
		{name: "a drain completes", before: drain},
		{name: "a parked drain completes", before: drain, parked: true},
		{name: "a provision completes", before: provision},
		{name: "a parked provision completes", before: provision, parked: true},
		{name: "a drain completes, and the node is reactivated", before: drain, after: reactivate},
		{name: "a drain completes, and a reactivate is open", before: drain, open: reactivate},
		{name: "a parked drain completes, and a parked reactivate is open", before: drain, parked: true, open: reactivate, parks: true},
		{name: "a new drain completes", after: drain},
		{name: "a new provision completes", after: provision},
		{name: "a new drain is open", open: drain},
		{name: "a new provision is open", open: provision},
		{name: "a new drain is parked", open: drain, parks: true},
		{name: "a new provision is parked", open: provision, parks: true},
		{name: "a new drain completes, and a parked reactivate is open", after: drain, open: reactivate, parks: true},
	}
}

// TestPostgresRestored restores an older copy of Postgres while operations are open. Runs
// of operations since the copy have no row, and the rows of older operations name runs
// that went further. Afterwards a new action completes on each node after the printed
// commands, typed as they are. No node starts a destructive task of an operation twice,
// and no run stays open.
func TestPostgresRestored(t *testing.T) {
	nodes := nodesOfPostgres()
	s, fleet, restore := workBeforeRestore(t, "older", nodes, copyPostgres)
	repeated := fleet.count(t, "repeated")
	var parked []*endedRun
	for _, n := range nodes {
		if n.open != "" {
			parked = append(parked, &endedRun{parked: n.parks, operation: n.start(t, n.open)})
		}
	}
	s.park(parked)
	restore()
	fleet = startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	goOnAll(t, nodes)
	fleet.stop(t)
	require.Zero(t, repeated+fleet.count(t, "repeated"), "a node started a destructive task of an operation again")
	ok(t, "audit", "--verify")
	requireNoRuns(t, nodes)
}

// copyPostgres copies the data of Postgres while the server is stopped. The returned
// function puts the copy back.
func copyPostgres(t *testing.T) (restore func()) {
	t.Helper()
	var data string
	query(t, func(r pgx.Rows) { require.NoError(t, r.Scan(&data)) }, "SHOW data_directory")
	saved := filepath.Join(t.TempDir(), "data")
	stopPostgres(t, data)
	copyFolder(t, data, saved)
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	return func() {
		stopPostgres(t, data)
		require.NoError(t, os.RemoveAll(data))
		copyFolder(t, saved, data)
		ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	}
}

// stopPostgres shuts the server down and waits until it has closed its files.
func stopPostgres(t *testing.T, data string) {
	t.Helper()
	require.NoError(t, syscall.Kill(parts(t)["postgres"].PID, syscall.SIGINT))
	eventually(t, "Postgres has stopped", func() bool {
		_, err := os.Stat(filepath.Join(data, "postmaster.pid"))
		return os.IsNotExist(err) && !parts(t)["postgres"].Healthy
	})
}

// copyFolder copies a folder with its owners and permissions.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}
