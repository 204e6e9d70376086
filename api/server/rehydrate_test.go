package server

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// fakeRuns returns one end for every operation.
type fakeRuns struct {
	end lifecycle.RunEnd
	err error
}

func (f *fakeRuns) RunEnds(_ context.Context, ops []lifecycle.Operation) (ends []lifecycle.RunEnd, errs []error) {
	for range ops {
		ends, errs = append(ends, f.end), append(errs, f.err)
	}
	return ends, errs
}

// EndLeftover implements runs.
func (*fakeRuns) EndLeftover(context.Context, string, temporal.Read) (left temporal.Leftover, err error) {
	return left, nil
}

// A rehydration ends only an operation whose run Temporal reports as ended, and only
// once.
func TestRehydrateByHTTP(t *testing.T) {
	c := newCluster(t)
	runs := &fakeRuns{}
	c.runs = runs
	r := c.replica()
	m := r.enrolled()
	path := "/nodes/" + m.id + "/rehydrate"
	var done lifecycle.Rehydration
	rehydrate := func() reply { return r.ask(http.MethodPost, path, `{"reason":"by mistake"}`) }
	rehydrate().into(t, &done)
	require.Empty(t, done.Ended, "the node has no operation")
	require.Equal(t, lifecycle.NodeActive, done.From)

	drain := func() {
		t.Helper()
		a := r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", nil)
		require.Equal(t, http.StatusAccepted, a.status, string(a.body))
	}
	drain()
	state := func() (n wire.NodeView) {
		r.ask(http.MethodGet, "/nodes/"+m.id, nil).into(t, &n)
		return n
	}
	host := state().Host
	e := rehydrate().refusal(t)
	assert.Equal(t, schema.KindOperationInProgress, e.Code)
	assert.Equal(t, "gpuaas op show "+host, e.Next)
	runs.end, runs.err = "", schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")
	assert.Equal(t, schema.KindServiceUnavailable, rehydrate().refusal(t).Code)
	assert.Equal(t, lifecycle.NodeDraining, state().State, "nothing changed")
	assert.Equal(t, lifecycle.OperationRunning, state().Operation.Status)

	runs.end, runs.err = lifecycle.RunTerminated, nil
	_, err := r.store.Operations.Abandon(t.Context(), state().Operation.OperationID, state().Operation.RunID, lifecycle.RunTerminated)
	require.NoError(t, err)
	runs.end = "" // an operator reset the run
	e = rehydrate().refusal(t)
	assert.Equal(t, schema.KindOperationInProgress, e.Code)
	assert.Equal(t, lifecycle.NodeDraining, state().State)
	assert.Equal(t, lifecycle.OperationRunning, state().Operation.Status, "the operation is no longer abandoned")

	runs.end = lifecycle.RunTerminated
	rehydrate().into(t, &done)
	require.Len(t, done.Ended, 1)
	assert.Equal(t, lifecycle.RunTerminated, done.Ended[0].Reason)
	assert.Equal(t, []lifecycle.NodeState{lifecycle.NodeDraining, lifecycle.NodeActive}, []lifecycle.NodeState{done.From, done.Node.State})
	assert.Equal(t, lifecycle.NodeActive, state().State)
	assert.Nil(t, state().Operation)
	rehydrate().into(t, &done)
	assert.Empty(t, done.Ended, "a repeat changes nothing")
	var page wire.AuditPage
	r.ask(http.MethodGet, "/audit?action=nodes.rehydrate&actor=admin-token&limit=10", nil).into(t, &page)
	require.NotEmpty(t, page.Events)
	drain()
	assert.Equal(t, lifecycle.NodeDraining, state().State, "the same action starts again")
}
