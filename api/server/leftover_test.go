package server

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestRunWithoutRecord: the database was restored to a time before an operation claimed its
// node. The run waits without a write. When the time to claim is over, a rehydration or the
// next operation ends the run. Before, both name the time, and the command that shows the run.
func TestRunWithoutRecord(t *testing.T) {
	w, own := newRun(t)
	c := newCluster(t)
	r := c.replica()
	c.runs, c.lifecycle = own.Operations, starter{own.Operations, r.store.Admin}
	r = c.replica()
	n := r.register()
	c.exec("UPDATE nodes SET state = 'active' WHERE node_id = $1", n.ID)
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: n.ID, Host: n.Host, Action: lifecycle.ActionDrain, Actor: "alice", StartWithinSeconds: 3600}
	w.id = lifecycle.WorkflowID(in.Action, in.Host, in.NodeID)
	w.start(in)
	rehydrate := func() reply { return r.ask(http.MethodPost, "/nodes/"+n.ID+"/rehydrate", nil) }
	for _, answer := range []reply{rehydrate(), r.ask(http.MethodPost, "/nodes/"+n.ID+"/drain", nil)} {
		e := answer.refusal(t)
		require.Equal(t, schema.KindOperationInProgress, e.Code)
		require.Equal(t, "not_claimed", e.Reason)
		require.Equal(t, "gpuaas --direct op show "+n.Host, e.Next, "a rehydration is rejected until then")
		require.Contains(t, e.Message, "; after that, "+lifecycle.RehydrateCommand(n.Host)+" ends its run")
		require.Contains(t, e.Message, in.OperationID)
		require.Contains(t, e.Message, time.Now().UTC().Add(time.Hour).Format("2006-01-02T"))
	}
	require.NoError(t, w.client.TerminateWorkflow(t.Context(), w.id, "", "the test continues with another run"))

	in.OperationID, in.StartWithinSeconds = schema.NewID(), -3600 // as if it had started an hour ago
	runID := w.start(in)
	var done lifecycle.Rehydration
	rehydrate().into(t, &done)
	require.Empty(t, done.Ended, "no operation was open")
	require.Equal(t, []string{in.OperationID}, done.Terminated)
	d, err := w.client.DescribeWorkflowExecution(t.Context(), w.id, runID)
	require.NoError(t, err)
	require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, d.GetWorkflowExecutionInfo().GetStatus())
	done = lifecycle.Rehydration{}
	rehydrate().into(t, &done)
	require.Empty(t, done.Terminated, "a repeat changes nothing")

	in.OperationID = schema.NewID()
	w.start(in)
	a := r.ask(http.MethodPost, "/nodes/"+n.ID+"/drain", nil)
	require.Equal(t, http.StatusAccepted, a.status, string(a.body))
}

// TestRejectedClaim: the caller gets the reason of a claim that the database rejects, also
// while the run of the rejected operation is still open.
func TestRejectedClaim(t *testing.T) {
	w, own := newRun(t)
	c := newCluster(t)
	r := c.replica()
	c.lifecycle = starter{own.Operations, r.store.Admin}
	r = c.replica()
	n := r.register()
	c.exec("UPDATE nodes SET state = 'active' WHERE node_id = $1", n.ID)
	w.serve(func(ctx workflow.Context, _ lifecycle.OperationInput) error {
		rejected := activities.Fail(schema.NewError(schema.KindOperationInProgress, "node %s has an open retire", n.Host).WithReason("retire_open"))
		if err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateSubmit, func(workflow.Context) (op lifecycle.Operation, err error) {
			return op, rejected
		}); err != nil {
			return err
		}
		return workflow.Await(ctx, func() bool { return false })
	})
	e := r.ask(http.MethodPost, "/nodes/"+n.ID+"/drain", nil).refusal(t)
	require.Equal(t, "retire_open", e.Reason, e.Message)
}
