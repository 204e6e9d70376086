package activities_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// openOps is the open operations of a database, and what Temporal has of their runs.
type openOps struct {
	ids     []string
	after   []string // of each Watched
	ends    map[string]lifecycle.RunEnd
	fails   map[string]error // of RunEnd
	refuses map[string]error // of Abandon
	known   map[string]bool  // abandoned before
	read    []string
	marked  []string
}

func (o *openOps) Watched(_ context.Context, after string, limit int) (ops []activities.WatchedOperation, _ error) {
	o.after = append(o.after, after)
	if err := o.fails["list"]; err != nil {
		return nil, err
	}
	for _, id := range o.ids {
		if id > after && len(ops) < limit {
			status := lifecycle.OperationRunning
			if o.known[id] {
				status = lifecycle.OperationAbandoned
			}
			ops = append(ops, activities.WatchedOperation{NodeID: "n" + id, Host: "h" + id,
				Operation: lifecycle.Operation{OperationID: id, RunID: "r" + id, Action: lifecycle.ActionDrain, Status: status}})
		}
	}
	return ops, nil
}

func (o *openOps) RunEnd(_ context.Context, op lifecycle.Operation) (lifecycle.RunEnd, error) {
	o.read = append(o.read, op.OperationID)
	return o.ends[op.OperationID], o.fails[op.OperationID]
}

func (o *openOps) Abandon(_ context.Context, operationID, runID string, end lifecycle.RunEnd) error {
	if err := o.refuses[operationID]; err != nil {
		return err
	}
	o.marked = append(o.marked, fmt.Sprint(operationID, runID, end))
	return nil
}

func (o *openOps) Continue(_ context.Context, operationID, runID string) error {
	o.marked = append(o.marked, operationID+runID+"continues")
	return nil
}

func (o *openOps) watch(t *testing.T, resumed *activities.WatchSummary) (activities.WatchSummary, error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	a := &activities.Watch{Abandoner: o, Runs: o}
	env.RegisterActivity(a)
	if resumed != nil {
		env.SetHeartbeatDetails(*resumed)
	}
	v, err := env.ExecuteActivity(a.AbandonOperations)
	var done activities.WatchSummary
	if err == nil {
		require.NoError(t, v.Get(&done))
	}
	return done, err
}

// many returns n operation ids in order.
func many(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%04d", i+1))
	}
	return ids
}

func TestWatchMarksEveryEndedRun(t *testing.T) {
	t.Parallel()
	o := &openOps{ids: many(250), ends: map[string]lifecycle.RunEnd{"0001": lifecycle.RunTerminated, "0150": lifecycle.RunLost, "0250": lifecycle.RunLost}}
	done, err := o.watch(t, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"", "0100", "0200"}, o.after)
	require.Equal(t, o.ids, o.read)
	require.Equal(t, []string{"0001r0001run_terminated", "0150r0150run_lost", "0250r0250run_lost"}, o.marked)
	require.Equal(t, 250, done.Watched)
	require.Equal(t, map[lifecycle.RunEnd]int{lifecycle.RunTerminated: 1, lifecycle.RunLost: 2}, done.Ends)
	require.Equal(t, activities.AbandonedOperation{OperationID: "0150", NodeID: "n0150", Host: "h0150", Action: lifecycle.ActionDrain,
		End: lifecycle.RunLost}, done.Abandoned[1])
}

// TestWatchContinuesResetRuns: an operation that is abandoned already is not marked or
// counted again, and one whose run was reset runs again.
func TestWatchContinuesResetRuns(t *testing.T) {
	t.Parallel()
	o := &openOps{ids: many(3), known: map[string]bool{"0001": true, "0002": true}, ends: map[string]lifecycle.RunEnd{"0001": lifecycle.RunLost}}
	done, err := o.watch(t, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"0002r0002continues"}, o.marked)
	require.Equal(t, 3, done.Watched)
	require.Empty(t, done.Ends)
	require.Empty(t, done.Abandoned)
}

// TestWatchSkipsUndecidable: an operation whose run cannot be read, or that cannot be
// marked, does not stop the others. The attempt fails visibly and is not retried.
func TestWatchSkipsUndecidable(t *testing.T) {
	t.Parallel()
	broken := schema.NewError(schema.KindInternal, "cannot parse its row")
	o := &openOps{ids: many(4), fails: map[string]error{"0001": broken}, refuses: map[string]error{"0002": broken},
		ends: map[string]lifecycle.RunEnd{"0001": lifecycle.RunLost, "0002": lifecycle.RunLost, "0003": lifecycle.RunFailed}}
	_, err := o.watch(t, nil)
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.True(t, app.NonRetryable())
	require.Equal(t, []string{"0003r0003run_failed"}, o.marked, "what is not known is not marked")
	require.Equal(t, many(4), o.read)
}

// TestWatchContinues: while a service is unavailable nothing is marked, and the next
// attempt continues with the operation that could not be read.
func TestWatchContinues(t *testing.T) {
	t.Parallel()
	unavailable := schema.NewError(schema.KindServiceUnavailable, "unavailable")
	for name, o := range map[string]*openOps{
		"temporal": {fails: map[string]error{"0103": unavailable}},
		"database": {refuses: map[string]error{"0103": unavailable}},
		"list":     {fails: map[string]error{"list": unavailable}},
	} {
		o.ids, o.ends = many(150), map[string]lifecycle.RunEnd{"0103": lifecycle.RunLost}
		_, err := o.watch(t, nil)
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app, name)
		require.False(t, app.NonRetryable(), name)
		require.Empty(t, o.marked, name)

		o.fails, o.refuses, o.read = nil, nil, nil
		done, err := o.watch(t, &activities.WatchSummary{After: "0102", Watched: 102, Ends: map[lifecycle.RunEnd]int{lifecycle.RunLost: 1}})
		require.NoError(t, err, name)
		require.Equal(t, "0103", o.read[0], name)
		require.Equal(t, 150, done.Watched, name)
		require.Equal(t, 2, done.Ends[lifecycle.RunLost], name)
		require.Equal(t, []string{"0103r0103run_lost"}, o.marked, name)
	}
}
