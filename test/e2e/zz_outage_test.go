package e2e

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	activitypb "go.temporal.io/api/activity/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// The size of TestOutageHeals. -outage 15m -outage-ops 200 -timeout 120m is the full size:
// the budget of every phase ends during the outage.
var (
	outageOps  = flag.Int("outage-ops", 20, "operations in flight during an outage, a multiple of 4")
	outageTime = flag.Duration("outage", 10*time.Second, "duration of an outage")
)

const (
	// budgetsEnd is the outage from which the budgets of most phases end without help.
	budgetsEnd = 6 * time.Minute
	// healTimeout bounds the recovery after an outage. It exceeds the longest pause between
	// two tries of a parked operation.
	healTimeout = 20 * time.Minute
)

// TestOutageHeals stops Postgres, Vault and the worker with operations in flight, so that
// operations park. After the return every operation ends without a command, and every
// node starts the destructive task of its operation once. In a long outage, each of the
// three is also stopped alone.
//
// A parked operation waits for lifecycle.RetryPause before its first retry. In a short
// outage the test waits for it beside the parallel tests of the suite. So it must be the
// last test that stops a part of the stack: its file is the last one.
func TestOutageHeals(t *testing.T) { //nolint:tparallel // the long outages follow one another
	all := []string{"vault", "postgres", "worker"}
	if *outageTime < budgetsEnd {
		outage(t, all)
		return
	}
	for _, victims := range [][]string{all, {"postgres"}, {"vault"}, {"worker"}} {
		t.Run(strings.Join(victims, "+"), func(t *testing.T) { outage(t, victims) })
	}
}

func outage(t *testing.T, victims []string) {
	t.Helper()
	work := min(2*time.Second+time.Duration(*outageOps)*100*time.Millisecond, 15*time.Second)
	f := startFleet(t, *outageOps, host(t, "heal"), "--task-time", fmt.Sprintf("%s..%s", work, work*5/3))
	f.waitActive(t)
	ids := startMixed(t, f)
	t.Cleanup(func() { logOperations(t, f) })
	inFlight := countOpen(t, ids)
	require.GreaterOrEqual(t, inFlight, len(ids)*3/4, "operations in flight")
	short := *outageTime < budgetsEnd
	if short {
		kill(t, victims[0], "")
		endBudgets(t, f, ids)
		victims = victims[1:]
	}
	for _, name := range victims {
		kill(t, name, "")
	}
	down := time.Now()
	harness.Poll(t, func() bool { return time.Since(down) >= *outageTime }, *outageTime+time.Minute, 100*time.Millisecond)
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)

	back := time.Now()
	if short {
		t.Parallel()
	}
	harness.Poll(t, func() bool { return countOpen(t, ids) == 0 }, healTimeout, time.Second, "every operation ends")
	parked := countParked(t, ids)
	t.Logf("away for %s with %d of %d operations in flight: %d parked, and the last one ended %s after the return",
		back.Sub(down).Round(time.Second), inFlight, len(ids), parked, time.Since(back).Round(time.Second))
	if !slices.Equal(victims, []string{"worker"}) { // without a worker, no operation parks: its next one finds what happened
		require.Positive(t, parked, "no operation parked")
	}
	requireHealed(t, f, ids)
}

// startMixed starts a drain or a retire --drain on half of the nodes, waits until a drain
// runs, starts a drain --cordon-only or a provision on each other node, and returns the
// operations' ids.
func startMixed(t *testing.T, f *simulatedFleet) (ids []string) {
	t.Helper()
	nodes := slices.Collect(maps.Values(f.nodes(t)))
	half := len(nodes) / 2
	ids = startEach(t, nodes[:half], lifecycle.ActionDrain, lifecycle.Options{}, lifecycle.ActionRetire, lifecycle.Options{Drain: true})
	harness.Poll(t, func() bool {
		return queryNumber(t, "SELECT count(*) FROM node_tasks WHERE operation_id = ANY($1::uuid[]) AND type = $2 AND status = 'running'",
			ids, task.WorkloadDrain) > 0
	}, conditionTimeout, 100*time.Millisecond, "drains run")
	return append(ids, startEach(t, nodes[half:], lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true}, lifecycle.ActionProvision, lifecycle.Options{})...)
}

// startEach starts one of two actions on each node, in turn.
func startEach(t *testing.T, nodes []wire.NodeView, a lifecycle.Action, ao lifecycle.Options, b lifecycle.Action, bo lifecycle.Options) []string {
	t.Helper()
	ids := make([]string, len(nodes))
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, n := range nodes {
		action, options := a, ao
		if i%2 == 1 {
			action, options = b, bo
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var response wire.LifecycleResponse
			callAdminAPI(t, http.MethodPost, "/nodes/"+n.ID+"/"+string(action), wire.LifecycleRequest{Reason: "test", Options: options}, &response)
			ids[i] = response.Operation.OperationID
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return ids
}

// endBudgets ends the budgets of the operations that cannot enqueue their next task, as
// a longer outage would, until all provisions are parked.
func endBudgets(t *testing.T, f *simulatedFleet, ids []string) {
	t.Helper()
	c := dial(t)
	nodes := f.nodes(t)
	harness.Poll(t, func() bool {
		for _, n := range nodes {
			endBudget(t, c, lifecycle.NodeWorkflowID(n.Host, n.ID))
		}
		return countParked(t, ids) >= len(ids)/4
	}, conditionTimeout, time.Second, "operations park")
}

// endBudget ends the time limit of the run's pending activities that enqueue a task.
func endBudget(t *testing.T, c client.Client, workflowID string) {
	t.Helper()
	d, err := c.DescribeWorkflowExecution(t.Context(), workflowID, "")
	require.NoError(t, err)
	enqueue := harness.Activities{Namespace: shared.Getenv("TEMPORAL_NAMESPACE"), WorkflowID: workflowID, Type: "EnqueueNodeTask"}
	if !slices.ContainsFunc(d.GetPendingActivities(), func(a *workflowpb.PendingActivityInfo) bool {
		return a.GetActivityType().GetName() == enqueue.Type
	}) {
		return
	}
	err = enqueue.Change(t.Context(), c, "schedule_to_close_timeout", &activitypb.ActivityOptions{ScheduleToCloseTimeout: durationpb.New(time.Second)})
	if err != nil { // it may have ended
		t.Logf("%s: %v", workflowID, err)
	}
}

func countOpen(t *testing.T, ids []string) int {
	t.Helper()
	return queryNumber(t, "SELECT count(*) FROM operations WHERE operation_id = ANY($1::uuid[]) AND ended_at IS NULL", ids)
}

// countParked counts the operations that parked, even if they continued since.
func countParked(t *testing.T, ids []string) int {
	t.Helper()
	return queryNumber(t, "SELECT count(DISTINCT operation_id) FROM audit_events WHERE operation_id = ANY($1::text[]) AND result = $2", ids, audit.Parked)
}

// requireHealed requires that the operations completed without a decision, and that each
// drain dispatched one task and no node started a destructive task again.
func requireHealed(t *testing.T, f *simulatedFleet, ids []string) {
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
		var dispatched int
		require.NoError(t, r.Scan(&operation, &dispatched))
		require.Equal(t, 1, dispatched, "dispatched drains of %s", operation)
		drains++
	}, `SELECT operation_id::text, count(*) FILTER (WHERE lease_epoch > 0)
		FROM node_tasks WHERE operation_id = ANY($1::uuid[]) AND type = $2 GROUP BY operation_id`, ids, task.WorkloadDrain)
	require.Equal(t, len(ids)/2, drains, "half of the operations drain")
	f.stop(t)
	require.Zero(t, f.count(t, "repeated"), "a node started a destructive task again")
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
