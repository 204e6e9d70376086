package e2e

import (
	"flag"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Flags of the outages. Temporal is down until every task that was handed over
// has ended on its node, and at least this long: with 2m the heartbeat timeouts
// of all activities pass meanwhile.
var (
	outageNodes = flag.Int("outage-nodes", 100, "how many nodes are drained, two tasks each, while everything fails")
	outageDown  = flag.Duration("outage-down", 5*time.Second, "how long Temporal is down at least")
)

// TestOutagesInTheMiddleOfManyTasks drains a fleet while one server after the
// other goes: the connection for notifications, Postgres, API, worker and
// Temporal. Every task is done and none is done twice, counted where the work is.
func TestOutagesInTheMiddleOfManyTasks(t *testing.T) {
	size := *outageNodes
	f := fleet(t, size, host(t, "out"), "--task-time", "5s..10s", "--heartbeat", "5s")
	f.activated(t)
	begun := f.count(t, "works")
	drainAll(t, f)
	require.Eventually(t, func() bool { return f.count(t, "works") > begun }, patience, 100*time.Millisecond, "the work begins")

	cutListeners(t)
	restart(t, "postgres")
	restart(t, "api", "worker")
	kill(t, "temporal", "")
	down := time.Now()
	eventually(t, "the tasks that were handed over have ended", func() bool { return open(t, f) == 0 })
	require.Eventually(t, func() bool { return time.Since(down) >= *outageDown }, *outageDown+time.Minute, 100*time.Millisecond)
	t.Logf("Temporal was down for %s; meanwhile %d results waited", time.Since(down).Round(time.Second), undelivered(t))
	ok(t, "dev", "up", "--detach", "--dir", shared.dir)

	require.Eventually(t, func() bool {
		resumeLost(t, f)
		return f.are(t, func(n wire.NodeView) bool { return n.State == lifecycle.NodeDrained && n.Operation == nil }) == size
	}, fleetPatience, time.Second, "all are drained")
	require.Eventually(t, func() bool { return f.count(t, "works")-begun >= 2*size }, patience, 100*time.Millisecond)
	require.Equal(t, 2*size, f.count(t, "works")-begun, "each work was begun once")
	requireDoneOnce(t, f)
}

func drainAll(t *testing.T, f *pretenders) {
	t.Helper()
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, n := range f.nodes(t) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var answer wire.LifecycleResponse
			ask(t, http.MethodPost, "/nodes/"+n.ID+"/drain", wire.LifecycleRequest{Reason: "test"}, &answer)
		})
	}
	all.Wait()
}

// cutListeners ends the connections over which the database wakes its clients.
func cutListeners(t *testing.T) {
	t.Helper()
	require.Positive(t, number(t, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'gpuaas-listener'`))
}

// restart kills parts with SIGKILL and starts them again.
func restart(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		kill(t, name, "")
	}
	ok(t, "dev", "up", "--detach", "--dir", shared.dir)
}

// open counts the fleet's tasks that a node has and has not reported.
func open(t *testing.T, f *pretenders) int {
	t.Helper()
	return number(t, `SELECT count(*) FROM node_tasks t JOIN nodes n USING (node_id)
		WHERE n.host LIKE $1 AND t.status IN ('pending', 'dispatched', 'running')`, f.prefix+"-%")
}

// resumeLost is the operator who reads gpuaas stuck: an API that is killed
// between the commit of a hand-over and its answer leaves a drain of which the
// node knows nothing, and which only a person may have offered again.
func resumeLost(t *testing.T, f *pretenders) {
	t.Helper()
	for _, v := range decode[wire.TaskList](t, ok(t, "task", "list", "-o", "json")).Tasks {
		if v.Status == task.Lost && strings.HasPrefix(v.Host, f.prefix+"-") {
			t.Logf("%s of %s was lost with its hand-over's answer", v.Type, v.Host)
			ok(t, "task", "resume", v.TaskID, "--yes", "--reason", "the node has no record of it")
		}
	}
}

func undelivered(t *testing.T) int {
	t.Helper()
	return number(t, "SELECT count(*) FROM outbox WHERE orphaned_at IS NULL")
}

// requireDoneOnce reads from the record that each of the fleet's tasks succeeded
// and was handed over once for each of its leases.
func requireDoneOnce(t *testing.T, f *pretenders) {
	t.Helper()
	ok(t, "audit", "--verify")
	tasks := 0
	query(t, func(r pgx.Rows) {
		var nodeHost, kind, status string
		var epoch, created, dispatched, finished int
		require.NoError(t, r.Scan(&nodeHost, &kind, &status, &epoch, &created, &dispatched, &finished))
		require.Equal(t, []any{string(task.Succeeded), 1, epoch, 1}, []any{status, created, dispatched, finished}, "%s on %s", kind, nodeHost)
		tasks++
	}, `SELECT n.host, t.type, t.status, t.lease_epoch,
		count(*) FILTER (WHERE a.action = $2), count(*) FILTER (WHERE a.action = $3), count(*) FILTER (WHERE a.action = $4)
		FROM node_tasks t JOIN nodes n USING (node_id) JOIN audit_events a ON a.stream = n.node_id::text AND a.target = t.task_id::text
		WHERE n.host LIKE $1 GROUP BY n.host, t.task_id`,
		f.prefix+"-%", audit.TaskCreated, audit.TaskDispatched, audit.TaskFinished)
	require.Equal(t, 2*f.size, tasks)
}
