package e2e

import (
	"flag"
	"net/http"
	"slices"
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

// The size of TestOutageHeals. With -ops 200 -outage 15m every phase's budget ends during
// the outage, so that the operations park.
var (
	outageOps  = flag.Int("ops", 20, "operations in flight during an outage")
	outageTime = flag.Duration("outage", 20*time.Second, "duration of an outage")
)

// healTimeout bounds the recovery after an outage. It exceeds the longest pause between two
// tries of a parked operation.
const healTimeout = 20 * time.Minute

// TestOutageHeals stops Postgres, Vault, the worker, and all of them, with operations in
// flight. After the return every operation ends without a command, and every destructive
// task was dispatched at most once.
func TestOutageHeals(t *testing.T) {
	for _, victims := range [][]string{{"postgres"}, {"vault"}, {"worker"}, {"postgres", "vault", "worker"}} {
		t.Run(strings.Join(victims, "+"), func(t *testing.T) {
			f := startFleet(t, *outageOps, host(t, "heal"), "--task-time", "1s..8s")
			f.waitActive(t)
			ops := startMixed(t, f)
			require.Eventually(t, func() bool { return open(t, f) > 0 }, conditionTimeout, 100*time.Millisecond, "tasks run")
			inFlight := countOpen(t, ops)
			for _, name := range victims {
				kill(t, name, "")
			}
			down := time.Now()
			require.Eventually(t, func() bool { return time.Since(down) >= *outageTime }, *outageTime+time.Minute, 100*time.Millisecond)
			ok(t, "dev", "up", "--detach", "--dir", shared.Dir)

			back := time.Now()
			t.Cleanup(func() { logOperations(t, f) })
			require.Eventually(t, func() bool { return countOpen(t, ops) == 0 }, healTimeout, time.Second, "every operation ends")
			t.Logf("%s away for %s with %d of %d operations in flight: the last one ended %s after the return",
				strings.Join(victims, ", "), time.Since(down).Round(time.Second)-time.Since(back).Round(time.Second), inFlight, len(ops),
				time.Since(back).Round(time.Second))
			requireHealed(t, ops)
		})
	}
}

// startMixed starts a drain, a drain --cordon-only, a provision or a retire --drain on each
// node, and returns the operations' ids.
func startMixed(t *testing.T, f *simulatedFleet) (ids []string) {
	t.Helper()
	kinds := []struct {
		action  lifecycle.Action
		options lifecycle.Options
	}{
		{lifecycle.ActionDrain, lifecycle.Options{}}, {lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true}},
		{lifecycle.ActionProvision, lifecycle.Options{}}, {lifecycle.ActionRetire, lifecycle.Options{Drain: true}},
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	i := 0
	for _, n := range f.nodes(t) {
		kind := kinds[i%len(kinds)]
		i++
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var response wire.LifecycleResponse
			callAdminAPI(t, http.MethodPost, "/nodes/"+n.ID+"/"+string(kind.action), wire.LifecycleRequest{Reason: "test", Options: kind.options}, &response)
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, response.Operation.OperationID)
		})
	}
	all.Wait()
	require.Len(t, ids, f.size)
	return ids
}

func countOpen(t *testing.T, ids []string) int {
	t.Helper()
	return queryNumber(t, "SELECT count(*) FROM operations WHERE operation_id = ANY($1::uuid[]) AND ended_at IS NULL", ids)
}

// requireHealed requires that the operations completed without a decision, and
// that no destructive task was created or dispatched twice.
func requireHealed(t *testing.T, ids []string) {
	t.Helper()
	completed := 0
	query(t, func(r pgx.Rows) {
		var id, status, outcome string
		require.NoError(t, r.Scan(&id, &status, &outcome))
		require.Equal(t, string(lifecycle.OperationCompleted), status, "%s: %s", id, outcome)
		completed++
	}, "SELECT operation_id::text, status, outcome FROM operations WHERE operation_id = ANY($1::uuid[])", ids)
	require.Len(t, ids, completed)

	drains := 0
	query(t, func(r pgx.Rows) {
		var operation string
		var tasks, dispatched int
		require.NoError(t, r.Scan(&operation, &tasks, &dispatched))
		require.Equal(t, 1, tasks, "tasks of %s", operation)
		require.Equal(t, 1, dispatched, "dispatches of %s", operation)
		drains++
	}, `SELECT t.operation_id::text, count(DISTINCT t.task_id), count(a.*)
		FROM node_tasks t LEFT JOIN audit_events a ON a.stream = t.node_id::text AND a.target = t.task_id::text AND a.action = $3
		WHERE t.operation_id = ANY($1::uuid[]) AND t.type = $2 GROUP BY t.operation_id`, ids, task.WorkloadDrain, audit.TaskDispatched)
	require.Equal(t, len(ids)/2, drains, "half of the operations drain")
	requireNoDecision(t, ids)
}

// requireNoDecision requires that the audit has no decision about the operations.
func requireNoDecision(t *testing.T, ids []string) {
	t.Helper()
	seen := map[string]bool{}
	query(t, func(r pgx.Rows) {
		var action string
		require.NoError(t, r.Scan(&action))
		seen[action] = true
	}, "SELECT DISTINCT action FROM audit_events WHERE operation_id = ANY($1::text[])", ids)
	require.NotEmpty(t, seen)
	for action := range seen {
		require.False(t, slices.Contains([]string{audit.Decision, audit.TaskResume, audit.TaskCancel}, action), action)
	}
}
