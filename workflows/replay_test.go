package workflows

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// fixtures are histories of real runs, written with -record and kept per release:
// whole operations in testdata/replay/RELEASE, and the corpus (see TestCorpus). A
// history is never edited; a change that breaks one needs a version gate in the
// workflow.
func fixtures(t *testing.T) map[string]*historypb.History {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*/*.json.gz")
	require.NoError(t, err)
	out := map[string]*historypb.History{}
	for _, f := range files {
		out[f] = readHistory(t, f)
	}
	return out
}

func readHistory(t *testing.T, file string) *historypb.History {
	t.Helper()
	packed, err := os.ReadFile(file)
	require.NoError(t, err)
	r, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	raw, err := io.ReadAll(r)
	require.NoError(t, err)
	h, err := client.HistoryFromJSON(bytes.NewReader(raw), client.HistoryJSONOptions{})
	require.NoError(t, err)
	return h
}

func replayer(t *testing.T, entries []Entry) worker.WorkflowReplayer {
	t.Helper()
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{DisableRegistrationAliasing: true})
	require.NoError(t, err)
	for _, e := range entries {
		r.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	return r
}

func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	recorded := fixtures(t)
	types := map[string]bool{}
	for name, h := range recorded {
		require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, h), name)
		types[h.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()] = true
	}
	for _, e := range Registry() {
		require.True(t, types[e.Type], "no recorded history of %s", e.Type)
	}
}

// TestReplayDetectsChanges proves that the test above can fail: the same history
// under a workflow that does other things first.
func TestReplayDetectsChanges(t *testing.T) {
	t.Parallel()
	reordered := func(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
		if err := workflow.Sleep(ctx, 1); err != nil {
			return lifecycle.OperationStatus{}, err
		}
		return run(ctx, lifecycle.ActionDrain, in, nil)
	}
	for name, h := range fixtures(t) {
		if h.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName() == "Drain" {
			require.Error(t, replayer(t, []Entry{{"Drain", reordered}}).ReplayWorkflowHistory(nil, h), name)
			return
		}
	}
	t.Fatal("no recorded history of Drain")
}

// TestHistoriesHaveSummaries holds that everything that an operator sees in a
// timeline has a summary in words, and that no token is in any event.
func TestHistoriesHaveSummaries(t *testing.T) {
	t.Parallel()
	for name, h := range fixtures(t) {
		for _, e := range h.GetEvents() {
			switch e.GetEventType() {
			case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, enumspb.EVENT_TYPE_TIMER_STARTED,
				enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
				require.NotEmpty(t, e.GetUserMetadata().GetSummary().GetData(), "%s: event %d has no summary", name, e.GetEventId())
			}
			require.NotContains(t, e.String(), trust.TokenPrefix, "%s: event %d holds a token", name, e.GetEventId())
		}
	}
}
