package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// restoredNode is one node, and what happens to it before and after the copy of Temporal's
// database that is restored.
type restoredNode struct {
	name string
	// before is open when the copy is made, and completes later. With parked it is
	// parked then, and continues with a retry.
	before lifecycle.Action
	parked bool
	// after completes after the copy; open is open when the copy is restored, so that
	// the copy does not have it. With parks it is parked then.
	after, open lifecycle.Action
	parks       bool

	host, id   string
	operations []string
}

func restoredNodes() []*restoredNode {
	drain, provision, reactivate := lifecycle.ActionDrain, lifecycle.ActionProvision, lifecycle.ActionReactivate
	return []*restoredNode{
		{name: "a drain completes", before: drain},
		{name: "a parked drain completes", before: drain, parked: true},
		{name: "a provision completes", before: provision},
		{name: "a parked provision completes", before: provision, parked: true},
		{name: "a drain completes, and the node is reactivated", before: drain, after: reactivate},
		{name: "a parked drain completes, and the node is reactivated", before: drain, parked: true, after: reactivate},
		{name: "a drain completes, and a reactivate is open", before: drain, open: reactivate},
		{name: "a parked drain completes, and a reactivate is open", before: drain, parked: true, open: reactivate},
		{name: "a new drain completes", after: drain},
		{name: "a new provision completes", after: provision},
		{name: "a new drain is open", open: drain},
		{name: "a new provision is open", open: provision},
		{name: "a new drain completes, and a reactivate is open", after: drain, open: reactivate},
		{name: "a new provision completes, and a drain is open", after: provision, open: drain},
	}
}

// TestTemporalRestored restores an older copy of Temporal's database while operations are
// open. Operations since the copy have no run; older ones run again from an older point.
// Afterwards a new action completes on each node after the printed commands, typed as they
// are. No task and no machine is made twice, and no run stays open.
func TestTemporalRestored(t *testing.T) {
	nodes := restoredNodes()
	s, _, restore := workBeforeRestore(t, "restore", nodes, copyTemporal)
	for _, n := range nodes {
		if n.open != "" {
			n.start(t, n.open)
		}
	}
	restore()
	startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	goOnAll(t, nodes)
	requireOnce(t, nodes)
	requireNoRuns(t, nodes)
}

// workBeforeRestore does on the nodes what a copy of a database has, makes the copy, and does
// what it does not have. It returns the fleet, which is stopped then.
func workBeforeRestore(t *testing.T, prefix string, nodes []*restoredNode, save func(*testing.T) (restore func())) (*sweep, *simulatedFleet, func()) {
	t.Helper()
	s := &sweep{T: t, prefix: host(t, prefix), size: len(nodes)}
	f := startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	f.waitActive(t)
	f.stop(t) // no agent runs, so operations stay open
	var parked []*endedRun
	for i, n := range nodes {
		n.host = fmt.Sprintf("%s-%04d", s.prefix, i+1)
		n.id = show(t, n.host).ID
		if n.before != "" {
			parked = append(parked, &endedRun{parked: n.parked, operation: n.start(t, n.before)})
		}
	}
	s.park(parked)
	restore := save(t)

	f = startFleet(t, s.size, s.prefix, "--task-time", "1ms")
	for _, n := range nodes {
		if n.parked {
			ok(t, "op", "retry", n.host, "--reason", "test")
		}
	}
	waitFree(t, nodes)
	for _, n := range nodes {
		if n.after != "" {
			n.start(t, n.after)
		}
	}
	waitFree(t, nodes)
	f.stop(t)
	return s, f, restore
}

// goOnAll completes an action on each node and requires that it succeeds.
func goOnAll(t *testing.T, nodes []*restoredNode) {
	t.Helper()
	var typed atomic.Int64
	t.Run("all", func(t *testing.T) {
		for _, n := range nodes {
			t.Run(n.name, func(t *testing.T) {
				t.Parallel()
				typed.Add(int64(n.goOn(t)))
			})
		}
	})
	require.False(t, t.Failed(), "a node does not continue")
	t.Logf("%d nodes continue after %d typed commands", len(nodes), typed.Load())
}

// startWithin is how many seconds the operations of a restored database may take to claim
// their node. A run without a row counts as left over from then on.
const startWithin = 20

// start starts an action on the node.
func (n *restoredNode) start(t *testing.T, a lifecycle.Action) lifecycle.Operation {
	t.Helper()
	var response wire.LifecycleResponse
	callAdminAPI(t, http.MethodPost, "/nodes/"+n.id+"/"+string(a), wire.LifecycleRequest{Reason: "test", StartWithinSeconds: startWithin}, &response)
	n.operations = append(n.operations, response.Operation.OperationID)
	return response.Operation
}

// goOnTimeout bounds the commands that an operator types about one node. It exceeds
// startWithin, the wait for a run to close, and a whole action.
const goOnTimeout = 2 * time.Minute

// notClaimed rejects a rehydrate while a run without a row may still claim the node. The
// rejection prints the same command, which ends the run after that time.
const notClaimed = "operation_in_progress: not_claimed"

// goOn completes an action on the node, after the commands that the rejections print. It
// returns their number.
func (n *restoredNode) goOn(t *testing.T) (typed int) {
	t.Helper()
	var r result
	harness.Poll(t, func() bool {
		action := []string{"drain", n.host, "--yes"}
		if slices.Contains(lifecycle.ActionsIn(show(t, n.host).State), lifecycle.ActionReactivate) {
			action = []string{"reactivate", n.host}
		}
		if r = run(t, slices.Concat([]string{"node"}, action, []string{"--wait", "-o", "json"})...); r.code == schema.ExitDone {
			return true
		}
		if line := n.nextLine(t, r); line != "" {
			typed++
			if typeLine(t, n.host, line, notClaimed); t.Failed() {
				t.FailNow()
			}
		}
		return false
	}, goOnTimeout, conditionEvery, "an action starts")
	n.operations = append(n.operations, decode[lifecycleStep](t, r).Operation.OperationID)
	return typed
}

// nextLine is the command to type after an action that was rejected or parked, "" if there
// is none. In place of op watch, which ends with the operation, and op show, it is the
// command of the park that they print.
func (n *restoredNode) nextLine(t *testing.T, r result) string {
	t.Helper()
	if r.code == schema.ExitPending {
		return stuckOf(t, n.id).Next
	}
	t.Logf("rejected: %s", strings.TrimSpace(r.stderr))
	rejection := decode[schema.ErrorBody](t, r).Error
	line := rejection.Next
	if rejection.Reason == "invalid_state" {
		return "" // an operation ended in the meantime: the next action follows from the new state
	}
	if strings.Contains(line, "gpuaas op watch ") || strings.Contains(line, "gpuaas op show ") {
		return stuckOf(t, n.id).Next
	}
	return line
}

// waitFree waits until no operation holds a node.
func waitFree(t *testing.T, nodes []*restoredNode) {
	t.Helper()
	var ids []string
	for _, n := range nodes {
		ids = append(ids, n.id)
	}
	eventually(t, "the operations end", func() bool {
		return queryNumber(t, "SELECT count(*) FROM operations WHERE node_id = ANY($1::uuid[]) AND ended_at IS NULL", ids) == 0
	})
}

// copyTemporal copies Temporal's database while the server is stopped. The returned
// function puts the copy back.
func copyTemporal(t *testing.T) (restore func()) {
	t.Helper()
	saved := t.TempDir()
	kill(t, "temporal", "")
	copyDatabase(t, shared.Dir, saved)
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	return func() {
		kill(t, "temporal", "")
		copyDatabase(t, saved, shared.Dir)
		ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	}
}

// copyDatabase copies a SQLite database with its write-ahead log.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range []string{"temporal.db", "temporal.db-wal", "temporal.db-shm"} {
		if err := os.Remove(filepath.Join(to, name)); !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		raw, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) && name != "temporal.db" {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, name), raw, 0o600))
	}
}

// requireOnce requires that each destructive task of an operation was dispatched once, and
// that each node has one machine, which was created once.
func requireOnce(t *testing.T, nodes []*restoredNode) {
	t.Helper()
	ok(t, "audit", "--verify")
	drains := 0
	for _, n := range nodes {
		query(t, func(r pgx.Rows) {
			var operation string
			var dispatched int
			require.NoError(t, r.Scan(&operation, &dispatched))
			require.Equal(t, 1, dispatched, "%s: dispatched drains of %s", n.name, operation)
			drains++
		}, `SELECT operation_id, count(*) FROM audit_events WHERE stream = $1 AND action = $2 AND detail->>'type' = $3 GROUP BY 1`,
			n.id, audit.TaskDispatched, task.WorkloadDrain)
		require.LessOrEqual(t, queryNumber(t, "SELECT count(*) FROM resources WHERE node_id = $1", n.id), 1, n.name)
		require.LessOrEqual(t, queryNumber(t, "SELECT count(*) FROM audit_events WHERE stream = $1 AND action = $2", n.id, audit.ResourceCreated), 1, n.name)
	}
	require.Positive(t, drains)
}

// requireNoRuns requires that no run of the nodes stays open.
func requireNoRuns(t *testing.T, nodes []*restoredNode) {
	t.Helper()
	c := dial(t)
	for _, n := range nodes {
		eventually(t, n.name+": no run is open", func() bool {
			open, err := c.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{
				Query: fmt.Sprintf("%s = %q AND ExecutionStatus = 'Running'", lifecycle.AttrNodeID, n.id)})
			require.NoError(t, err)
			return open.GetCount() == 0
		})
	}
}
