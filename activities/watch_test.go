package activities_test

import (
	"context"
	"fmt"
	"testing"
	"time"

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
	newer   map[string]bool  // another run is the newest, so Abandon marks nothing
	read    []string
	marked  []string
	// from and budget are those of the round.
	from   string
	budget time.Duration
	// onAbandon observes as activities.Watch.OnAbandon does.
	onAbandon func(lifecycle.Action, lifecycle.RunEnd)
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

func (o *openOps) RunEnds(_ context.Context, ops []lifecycle.Operation) (ends []lifecycle.RunEnd, errs []error) {
	for _, op := range ops {
		o.read = append(o.read, op.OperationID)
		ends, errs = append(ends, o.ends[op.OperationID]), append(errs, o.fails[op.OperationID])
	}
	return ends, errs
}

func (o *openOps) Abandon(_ context.Context, operationID, runID string, end lifecycle.RunEnd) (bool, error) {
	if err := o.refuses[operationID]; err != nil {
		return false, err
	}
	if o.newer[operationID] {
		return false, nil
	}
	o.marked = append(o.marked, fmt.Sprint(operationID, runID, end))
	return true, nil
}

func (o *openOps) Continue(_ context.Context, operationID, runID string) error {
	o.marked = append(o.marked, operationID+runID+"continues")
	return nil
}

func (o *openOps) watch(t *testing.T, resumed *activities.WatchSummary) (activities.WatchSummary, error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	a := &activities.Watch{Abandoner: o, Runs: o, OnAbandon: o.onAbandon, Budget: o.budget}
	env.RegisterActivity(a)
	if resumed != nil {
		env.SetHeartbeatDetails(*resumed)
	}
	v, err := env.ExecuteActivity(a.AbandonOperations, o.from)
	var done activities.WatchSummary
	if err == nil {
		require.NoError(t, v.Get(&done))
	}
	return done, err
}

// TestRoundEndsInTime: rounds that are too short for all operations read all of them
// together.
func TestRoundEndsInTime(t *testing.T) {
	t.Parallel()
	o := &openOps{ids: many(250), budget: time.Nanosecond}
	for _, want := range []activities.WatchSummary{{Watched: 100, After: "0100", More: true}, {Watched: 100, After: "0200", More: true}, {Watched: 50, After: "0250"}} {
		got, err := o.watch(t, nil)
		require.NoError(t, err)
		require.Equal(t, want, got)
		o.from = got.After
	}
	require.Equal(t, o.ids, o.read)
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
	require.Equal(t, []string{"0001r0001run_terminated", "0150r0150run_lost", "0250r0250run_lost"}, o.marked, "lost runs last")
	require.Equal(t, 250, done.Watched)
	require.Equal(t, map[lifecycle.RunEnd]int{lifecycle.RunTerminated: 1, lifecycle.RunLost: 2}, done.Ends)
	require.Equal(t, activities.AbandonedOperation{OperationID: "0150", NodeID: "n0150", Host: "h0150", Action: lifecycle.ActionDrain,
		End: lifecycle.RunLost}, done.Abandoned[1])
}

// TestWatchCountsWhatItMarked: an operation that ended, or has another run, since it was
// listed is not marked and not counted.
func TestWatchCountsWhatItMarked(t *testing.T) {
	t.Parallel()
	o := &openOps{ids: many(3), newer: map[string]bool{"0002": true, "0003": true},
		ends: map[string]lifecycle.RunEnd{"0001": lifecycle.RunTerminated, "0002": lifecycle.RunTerminated, "0003": lifecycle.RunLost}}
	observed := 0
	o.onAbandon = func(lifecycle.Action, lifecycle.RunEnd) { observed++ }
	done, err := o.watch(t, nil)
	require.NoError(t, err)
	require.Equal(t, 1, observed)
	require.Equal(t, 3, done.Watched)
	require.Equal(t, map[lifecycle.RunEnd]int{lifecycle.RunTerminated: 1}, done.Ends)
	require.Len(t, done.Abandoned, 1)
}

// lost returns n operations of which the first have no run.
func lost(missing, n int) *openOps {
	o := &openOps{ids: many(n), ends: map[string]lifecycle.RunEnd{}, known: map[string]bool{}}
	for _, id := range o.ids[:missing] {
		o.ends[id] = lifecycle.RunLost
	}
	return o
}

// TestWatchMarksNoneInAWrongNamespace: if Temporal has hardly any of the runs, the worker
// probably asks the wrong one, and no operation is marked because of it. A run that was
// found and ended is.
func TestWatchMarksNoneInAWrongNamespace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ missing, open, marked int }{
		{5, 5, 5}, {6, 12, 6}, {6, 11, 0}, {150, 299, 0}, {600, 1300, 500},
	} {
		o := lost(c.missing, c.open)
		_, err := o.watch(t, nil)
		require.Len(t, o.marked, c.marked, "%d of %d", c.missing, c.open)
		require.Equal(t, c.marked == 0, err != nil)
	}
	o := lost(6, 16)
	o.ends["0007"] = lifecycle.RunTerminated
	for _, id := range o.ids[7:] {
		o.known[id] = true // an abandoned operation has no open run
	}
	_, err := o.watch(t, nil)
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.True(t, app.NonRetryable())
	require.Equal(t, []string{"0007r0007run_terminated"}, o.marked[:1])
	e := activities.Typed(err)
	require.NotNil(t, e)
	require.Equal(t, []string{"service_unavailable", "runs_missing"}, []string{string(e.Kind), e.Reason})
	require.Contains(t, e.Message, "6 of 7 open operations")
	require.Contains(t, e.Next, "TEMPORAL_NAMESPACE")
	require.Contains(t, e.Next, "gpuaas node rehydrate --stuck-reason run_lost")
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
