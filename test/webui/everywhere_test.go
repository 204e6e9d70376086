package webui

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/common/v1"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reading is what an operator reads of something that is stuck, in one place.
type reading struct {
	Phase, Reason string
	WaitingOn     lifecycle.Attention
	Decisions     []lifecycle.Decision
	// Commands are those of the decisions.
	Commands []string
}

func readingOf(s lifecycle.Stuck) reading {
	r := reading{Phase: s.Phase, Reason: s.Reason, WaitingOn: s.WaitingOn}
	for _, o := range s.Options {
		r.Decisions, r.Commands = append(r.Decisions, o.Decision), append(r.Commands, o.Command)
	}
	return r
}

// requireEverywhere requires that a parked operation, which gpuaas stuck lists, is the same in the
// admin API, in gpuaas op show, in the query of the workflow, and in its search attributes.
func requireEverywhere(t *testing.T, op wire.StuckOperation) {
	t.Helper()
	want := readingOf(*op.Stuck)
	require.NotEmpty(t, want.Decisions)
	var list wire.StuckList
	get(t, "/stuck?node="+op.NodeID, &list)
	require.Len(t, list.Stuck, 1)
	require.Equal(t, want, readingOf(*list.Stuck[0].Stuck), "the list of the admin API")
	require.Equal(t, op.State, list.Stuck[0].State)
	var one wire.OperationView
	get(t, "/operations/"+op.OperationID, &one)
	require.Equal(t, want, readingOf(*one.Operation.Stuck), "the operation of the admin API")
	require.Equal(t, op.Status, one.Operation.Status)
	require.True(t, stack.Read(t, &one, "op", "show", op.Host))
	require.Equal(t, want, readingOf(*one.Operation.Stuck), "gpuaas op show")

	answer, err := temporal.QueryWorkflow(t.Context(), op.WorkflowID, op.RunID, lifecycle.QueryStatus)
	require.NoError(t, err)
	var status lifecycle.OperationStatus
	require.NoError(t, answer.Get(&status))
	require.Equal(t, op.Status, status.Operation.Status)
	asked := readingOf(*status.Operation.Stuck)
	require.Equal(t, want, asked, "the query of the workflow")

	attributes := attributesOf(t, op.WorkflowID, op.RunID)
	require.Equal(t, want.Reason, attributes[lifecycle.AttrStuckReason])
	require.Equal(t, string(want.WaitingOn), attributes[lifecycle.AttrAttention])
	require.Equal(t, want.Phase, attributes[lifecycle.AttrPhase])
	require.Equal(t, op.Host, attributes[lifecycle.AttrHost])
}

// attributesOf returns the search attributes of a run that are keywords.
func attributesOf(t *testing.T, workflowID, runID string) map[string]string {
	t.Helper()
	d, err := temporal.DescribeWorkflowExecution(t.Context(), workflowID, runID)
	require.NoError(t, err)
	all := map[string]string{}
	for name, p := range d.GetWorkflowExecutionInfo().GetSearchAttributes().GetIndexedFields() {
		if s, ok := keyword(p); ok {
			all[name] = s
		}
	}
	return all
}

func keyword(p *common.Payload) (s string, ok bool) {
	err := json.Unmarshal(p.GetData(), &s)
	return s, err == nil
}

// get reads from the admin API without the CLI.
func get(t *testing.T, path string, into any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, stack.Getenv("GPUAAS_API_URL")+"/api/v1/admin"+path, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+stack.Getenv("GPUAAS_API_TOKEN"))
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode, path)
	require.NoError(t, json.NewDecoder(res.Body).Decode(into))
}

func decodeJSON(t *testing.T, raw []byte, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(raw, into), "%s", raw)
}
