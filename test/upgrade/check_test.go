package upgrade

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// check compares what was requested with the records of Postgres, Temporal and the nodes.
func (w *world) check() {
	w.t.Helper()
	w.checkOperations()
	w.checkTasks()
	w.checkRuns()
	w.report()
	w.new.run(w.t.Context(), w.t, append(slices.Clone(w.c.stack.Env), "GPUAAS_API_URL=http://"+w.c.admin.address()), "audit", "--verify")
}

// endedOperation is an operation in the database.
type endedOperation struct {
	ID, Host string
	Action   lifecycle.Action
	Status   lifecycle.OperationState
	Outcome  string
}

// checkOperations requires that the database has exactly the operations that the API accepted, and that
// each ended as its requests say.
func (w *world) checkOperations() {
	w.t.Helper()
	rows, err := w.people.db.Query(w.t.Context(), `SELECT o.operation_id::text, n.host, o.action, o.status, o.outcome
		FROM operations o JOIN nodes n USING (node_id) ORDER BY o.started_at, o.operation_id OFFSET $1`, w.earlier)
	require.NoError(w.t, err)
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[endedOperation])
	require.NoError(w.t, err)
	wrong := map[string]endedOperation{}
	for _, o := range stored {
		e := w.people.started[o.ID]
		if e == nil || e.host != o.Host || e.action != o.Action || e.status != o.Status {
			wrong[o.ID] = o
		}
	}
	require.Empty(w.t, wrong, "operations that no request started, or that ended otherwise than requested")
	require.Len(w.t, stored, len(w.people.started), "operations that were accepted and are not stored")
}

// storedTask is a task in the database.
type storedTask struct{ ID, Status, Host string }

// checkTasks requires that the nodes executed each task that succeeded once, and no other twice. The
// number of executions is that of the nodes' own records.
func (w *world) checkTasks() {
	w.t.Helper()
	rows, err := w.people.db.Query(w.t.Context(), "SELECT t.task_id::text, t.status, n.host FROM node_tasks t JOIN nodes n USING (node_id)")
	require.NoError(w.t, err)
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedTask])
	require.NoError(w.t, err)
	accepted := w.fleet.accepted(w.t)
	wrong := map[string]int{}
	for _, task := range stored {
		n := accepted[task.ID]
		if n > 1 || n == 0 && task.Status == "succeeded" {
			wrong[task.ID+" "+task.Status] = n
		}
		w.executed.add(task, n)
		delete(accepted, task.ID)
	}
	require.Empty(w.t, wrong, "tasks that a node did not execute exactly once")
	require.Empty(w.t, accepted, "tasks of nodes that the database does not have")
	repeated := w.fleet.count(w.t, "repeated")
	require.Positive(w.t, repeated)
	// A task that is canceled right after its node accepted it ends before its work begins.
	require.LessOrEqual(w.t, repeated, w.people.retries, "a node begins the destructive work of an operation again only after the decision retry")
	require.LessOrEqual(w.t, w.fleet.count(w.t, "works"), len(stored), "executions")
}

// checkRuns requires that no run of an operation is open or failed, and that no workflow task failed.
// It counts the runs that crossed each switch.
func (w *world) checkRuns() {
	w.t.Helper()
	c, err := client.Dial(client.Options{HostPort: w.c.stack.Getenv("TEMPORAL_ADDRESS"), Namespace: w.c.stack.Getenv("TEMPORAL_NAMESPACE")})
	require.NoError(w.t, err)
	defer c.Close()
	statuses, failed := map[enumspb.WorkflowExecutionStatus]int{}, map[string]string{}
	for _, run := range w.runs(c) {
		statuses[run.GetStatus()]++
		builds, why := w.history(c, run)
		if why != "" {
			failed[run.GetExecution().GetWorkflowId()+" "+run.GetExecution().GetRunId()] = why
		}
		for i := 1; i < len(builds); i++ {
			w.crossed(builds[i])
		}
	}
	require.Empty(w.t, failed, "workflow tasks that failed")
	w.t.Logf("runs by status: %v", statuses)
	for _, status := range []enumspb.WorkflowExecutionStatus{enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT} {
		require.Zero(w.t, statuses[status], status.String())
	}
	for _, s := range w.switches {
		require.Positive(w.t, s.crossed, "runs that both versions continued, at the switch to %s", s.to)
	}
}

// turn is the first workflow task of a run that a version completed after another one.
type turn struct {
	build string
	at    time.Time
}

// crossed counts a run that another version continued, for the last promotion before.
func (w *world) crossed(by turn) {
	for _, s := range slices.Backward(w.switches) {
		if by.at.After(s.promoted) {
			if by.build == s.to {
				s.crossed++
			}
			return
		}
	}
}

// runs are all runs of operations.
func (w *world) runs(c client.Client) (all []*workflowpb.WorkflowExecutionInfo) {
	w.t.Helper()
	types := map[string]bool{}
	for _, p := range lifecycle.Operations() {
		types[p.Workflow] = true
	}
	var page []byte
	for {
		answer, err := c.ListWorkflow(w.t.Context(), &workflowservice.ListWorkflowExecutionsRequest{PageSize: 500, NextPageToken: page})
		require.NoError(w.t, err)
		for _, run := range answer.GetExecutions() {
			if types[run.GetType().GetName()] {
				all = append(all, run)
			}
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return all
		}
	}
}

// history returns the versions that completed the workflow tasks of a run, without repetitions, and
// why a workflow task failed.
func (w *world) history(c client.Client, run *workflowpb.WorkflowExecutionInfo) (builds []turn, why string) {
	w.t.Helper()
	events := c.GetWorkflowHistory(w.t.Context(), run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId(), false,
		enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		require.NoError(w.t, err)
		if done := e.GetWorkflowTaskCompletedEventAttributes(); done != nil {
			builds = append(builds, turn{done.GetDeploymentVersion().GetBuildId(), e.GetEventTime().AsTime()})
		}
		if failed := e.GetWorkflowTaskFailedEventAttributes(); failed != nil && failed.GetCause() != enumspb.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND {
			why = failed.GetCause().String() + ": " + failed.GetFailure().GetMessage()
		}
	}
	return slices.CompactFunc(builds, func(a, b turn) bool { return a.build == b.build }), why
}
