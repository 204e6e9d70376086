package e2e

import (
	"context"
	"flag"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// Flags of the outages. Temporal is down until every dispatched task has ended on its
// node, and at least this long: with 2m the heartbeat timeouts of all activities expire
// meanwhile.
var (
	outageNodes = flag.Int("outage-nodes", 100, "number of nodes to drain, with two tasks each")
	outageDown  = flag.Duration("outage-down", 5*time.Second, "minimum downtime of Temporal")
)

// TestOutagesDuringTasks drains a fleet while it kills the notification connections,
// Postgres, API, worker and Temporal in turn. Every task runs exactly once, as counted
// on the nodes.
func TestOutagesDuringTasks(t *testing.T) {
	size := *outageNodes
	f := startFleet(t, size, host(t, "out"), "--task-time", "5s..10s")
	f.waitActive(t)
	begun := f.count(t, "works")
	drainAll(t, f)
	harness.Poll(t, func() bool { return f.count(t, "works") > begun }, conditionTimeout, 100*time.Millisecond, "the tasks start")

	cutListeners(t)
	restart(t, "postgres")
	restart(t, "api", "worker")
	kill(t, "temporal", "")
	down := time.Now()
	harness.Poll(t, func() bool { return open(t, f) == 0 }, fleetTimeout, time.Second, "the dispatched tasks have ended")
	harness.Poll(t, func() bool { return time.Since(down) >= *outageDown }, *outageDown+time.Minute, 100*time.Millisecond)
	t.Logf("Temporal was down for %s; meanwhile %d results waited", time.Since(down).Round(time.Second), undelivered(t))
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)

	t.Cleanup(func() { logOperations(t, f) })
	harness.Poll(t, func() bool {
		resumeLost(t, f)
		return f.countNodes(t, func(n wire.NodeView) bool { return n.State == lifecycle.NodeDrained && n.Operation == nil }) == size
	}, fleetTimeout, time.Second, "all are drained")
	harness.Poll(t, func() bool { return f.count(t, "works")-begun >= 2*size }, conditionTimeout, 100*time.Millisecond)
	require.Equal(t, 2*size, f.count(t, "works")-begun, "each task started once")
	requireDoneOnce(t, f)
}

func drainAll(t *testing.T, f *simulatedFleet) {
	t.Helper()
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, n := range f.nodes(t) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var answer wire.LifecycleResponse
			callAdminAPI(t, http.MethodPost, "/nodes/"+n.ID+"/drain", wire.LifecycleRequest{Reason: "test"}, &answer)
		})
	}
	all.Wait()
}

// logOperations logs, after a failure, what the open operations of the fleet wait for.
func logOperations(t *testing.T, f *simulatedFleet) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	c, err := client.Dial(client.Options{HostPort: shared.Getenv("TEMPORAL_ADDRESS"), Namespace: shared.Getenv("TEMPORAL_NAMESPACE")})
	if err != nil {
		t.Logf("Temporal: %v", err)
		return
	}
	defer c.Close()
	for _, n := range f.nodes(t) {
		if n.Operation == nil {
			continue
		}
		run, err := c.DescribeWorkflowExecution(ctx, lifecycle.NodeWorkflowID(n.Host, n.ID), "")
		if err != nil {
			t.Logf("%s: %s in phase %s: %v", n.Host, n.State, n.Operation.Phase, err)
			continue
		}
		t.Logf("%s: %s in phase %s, the run is %s, pending: %v %v", n.Host, n.State, n.Operation.Phase,
			run.GetWorkflowExecutionInfo().GetStatus(), run.GetPendingWorkflowTask(), run.GetPendingActivities())
	}
}

// cutListeners terminates the connections that receive notifications.
func cutListeners(t *testing.T) {
	t.Helper()
	require.Positive(t, queryNumber(t, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'gpuaas-listener'`))
}

// restart kills parts with SIGKILL and restarts them.
func restart(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		kill(t, name, "")
	}
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
}

// open counts the fleet's unreported tasks.
func open(t *testing.T, f *simulatedFleet) int {
	t.Helper()
	return queryNumber(t, `SELECT count(*) FROM node_tasks t JOIN nodes n USING (node_id)
		WHERE n.host LIKE $1 AND t.status IN ('pending', 'dispatched', 'running')`, f.prefix+"-%")
}

// resumeLost acts as the operator: an API that is killed between the commit of a
// dispatch and its response leaves a drain that never reached the node and that only an
// operator may dispatch again.
func resumeLost(t *testing.T, f *simulatedFleet) {
	t.Helper()
	for _, v := range decode[wire.TaskList](t, ok(t, "task", "list", "-o", "json")).Tasks {
		if v.Status == task.Lost && strings.HasPrefix(v.Host, f.prefix+"-") {
			t.Logf("%s of %s was lost with its dispatch response", v.Type, v.Host)
			ok(t, "task", "resume", v.TaskID, "--yes", "--reason", "the node has no record of it")
		}
	}
}

func undelivered(t *testing.T) int {
	t.Helper()
	return queryNumber(t, "SELECT count(*) FROM outbox WHERE orphaned_at IS NULL")
}

// requireDoneOnce verifies in the audit that each of the fleet's tasks succeeded and
// was dispatched once per lease.
func requireDoneOnce(t *testing.T, f *simulatedFleet) {
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
